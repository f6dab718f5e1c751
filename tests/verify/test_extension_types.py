"""hstore, multiranges and geometry, which the manifest makes maps, lists of structs and bytes, in each destination.

``--server 15`` takes Debian's own hstore and PostGIS, see `tests.rigs.extension_types`.
"""

from __future__ import annotations

from typing import Final, LiteralString

import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.table import StaticTable
from tests.rigs.database import Database
from tests.rigs.extension_types import add_geometry, add_hstore
from tests.rigs.replicated import InDuckLake, Replicated, T, in_ducklake, replicated
from tests.rigs.verified_shop import Shop

from levada.runtime.config import TableConfig
from levada.schema.stored_types import StoredTypes
from levada.values import OnUnrepresentable

__all__ = ["in_ducklake", "replicated"]

CHOSEN: Final = {"h": "Map", "m": "Multirange", "z": "Multirange", "g": "Wkb", "added": "Map", "late": "Multirange"}
TYPES: Final = TableConfig(stored_types=StoredTypes.of(CHOSEN))
POINT: Final = "0101000020E6100000000000000000F03F0000000000000040"
"""ST_SetSRID(ST_MakePoint(1, 2), 4326)."""
PAIRS: Final = {"": 'ü, "x"=>NULL', "a": "1", "b\\ => ": "", 'quote"d': None}
TEXT: LiteralString = r'""=>"ü, \"x\"=>NULL", "a"=>"1", "b\\ => "=>"", "quote\"d"=>NULL'
ROWS: LiteralString = rf"""
    (1, '{TEXT}', '{{[1,3),[5,)}}', '{{[2024-03-31 01:30+02,2024-04-01 00:00+02)}}', '{POINT}'),
    (2, '', '{{}}', '{{}}', '0101000000000000000000F87F000000000000F87F'), (3, NULL, NULL, NULL, NULL),
    (4, '"k"=>NULL', '{{(,)}}', '{{(,1900-01-01 00:00:00.000001+00],[2024-01-01 00:00+00,)}}', '{POINT}')"""
ODD: LiteralString = "(11, '\"o\"=>\"\"', '{[7,8)}', '{[2024-01-01 00:00+00,infinity]}', NULL)"


def create(db: Database) -> None:
    """Make the table with rows. The types are in a schema that no search path has."""
    with db.connect() as connection:
        connection.execute('CREATE SCHEMA "Odd, One"')
        add_hstore(connection, "Odd, One")
        add_geometry(connection, "Odd, One")
    db.execute(
        'CREATE TABLE t (id int PRIMARY KEY, h "Odd, One".hstore, m int4multirange, z tstzmultirange,'
        ' g "Odd, One".geometry)',
        "INSERT INTO t VALUES " + ROWS + "," + ODD,
    )


def change(db: Database) -> None:
    """Write rows through the stream, with added columns, an unchanged TOASTed value, and a moved key."""
    db.execute(
        "INSERT INTO t SELECT id + 100, h, m, z, g FROM t",
        # Each is kept out of line by its size, and not sent again by the second statement.
        "INSERT INTO t (id, h) SELECT 200, ('\"k\"=>\"' || string_agg(md5(n::text), '') || '\"')::\"Odd, One\".hstore"
        " FROM generate_series(1, 400) n",
        "UPDATE t SET m = '{[9,10)}' WHERE id = 200",
        'ALTER TABLE t ADD added "Odd, One".hstore DEFAULT \'"d"=>"e"\', ADD late int8multirange DEFAULT \'{[1,2)}\'',
        'UPDATE t SET h = \'"new"=>"1"\', added = NULL WHERE id = 3',
        "UPDATE t SET id = 300 WHERE id = 104",
        "DELETE FROM t WHERE id = 103",
    )


def test_in_ducklake(in_ducklake: InDuckLake) -> None:
    """DuckDB reads maps, lists and bytes, and the comparison finds a changed part of each."""
    create(in_ducklake.db)
    in_ducklake.start(on_unrepresentable=OnUnrepresentable.NULL, tables={T: TYPES})
    change(in_ducklake.db)
    in_ducklake.wait_caught_up()
    report = in_ducklake.verify()
    assert report.equal, report
    assert report.source_rows == report.lake_rows == 10
    with in_ducklake.lake.duckdb() as lake:
        lake.execute("USE lake.shop_public")
        types = {name: kind for name, kind, *_ in lake.execute("DESCRIBE t").fetchall()}
        rows = {i: more for i, *more in lake.execute("SELECT id, h, m, g, added, late FROM t").fetchall()}
        found = lake.execute("SELECT id FROM t WHERE h['a'] = '1' ORDER BY id").fetchall()
        missing = lake.execute("SELECT count(*) FROM t WHERE z IS NULL AND id % 100 = 11").fetchone()
        lake.execute("USE lake")
    struct = "STRUCT(lower INTEGER, upper INTEGER, lower_inc BOOLEAN, upper_inc BOOLEAN, isempty BOOLEAN)"
    assert (types["h"], types["m"], types["g"]) == ("MAP(VARCHAR, VARCHAR)", f"{struct}[]", "BLOB")
    assert (found, missing) == ([(1,), (101,)], (2,))
    assert rows[1][0] == PAIRS
    assert [tuple(part.values()) for part in rows[1][1]] == [(1, 3, True, False, False), (5, None, True, False, False)]
    assert rows[1][2] == bytes.fromhex(POINT)
    assert (rows[2][:2], rows[3][0], rows[3][3], rows[4][3]) == ([{}, []], {"new": "1"}, None, {"d": "e"})
    assert len(rows[200][0]["k"]) == 400 * 32
    in_ducklake.damage("UPDATE t SET h = MAP {'': h[''], 'a': '2'}, g = 'x'::BLOB, m = [m[1]], z = [] WHERE id = 1")
    assert [(d.key, set(d.columns)) for d in in_ducklake.verify().examples] == [(("1",), {"h", "m", "z", "g"})]
    repaired = in_ducklake.verify(repair=True)
    assert repaired.repaired_equal, repaired
    assert in_ducklake.verify().equal


@pytest.mark.nightly
def test_in_postgresql(replicated: Replicated) -> None:
    """A map is hstore's text there, geometry is bytea, and a multirange has its own type."""
    create(replicated.db)
    replicated.start(on_unrepresentable=OnUnrepresentable.NULL, tables={T: TYPES})
    change(replicated.db)
    replicated.wait_caught_up()
    report = replicated.verify()
    assert report.equal, report
    columns = "SELECT id, h::text, m::text, z::text, {}, added::text, late::text FROM {} ORDER BY id"
    source = replicated.db.query(columns.format("concat(g)", "t"))  # type: ignore[arg-type]  # made of constants
    here = columns.format("upper(encode(g, 'hex'))", "shop_public.t")
    copied = replicated.replica.query(here)  # type: ignore[arg-type]  # as above
    expected = [(*row[:3], row[3] if row[0] % 100 != 11 else None, row[4] or None, *row[5:]) for row in source]
    assert copied == expected
    replicated.damage("UPDATE t SET h = '\"a\"=>\"1\"', g = '\\x00', m = '{}' WHERE id = 1")
    assert [(d.key, set(d.columns)) for d in replicated.verify().examples] == [(("1",), {"h", "m", "g"})]
    assert replicated.verify(repair=True).repaired_equal


@pytest.mark.nightly
def test_in_iceberg(shop: Shop) -> None:
    """Spark and PyIceberg read the same maps, lists and bytes, and the comparison finds a changed part of each."""
    shop.policy = OnUnrepresentable.NULL
    shop.config["tables"] = {T: TYPES}
    create(shop.db)
    shop.start()
    shop.wait_caught_up()
    change(shop.db)
    report = shop.verify()
    assert report.equal, report.examples
    assert report.source_rows == report.lake_rows == 10
    types = {c: t for c, t, _ in shop.sql("DESCRIBE {t}")}
    struct = "struct<lower:int,upper:int,lower_inc:boolean,upper_inc:boolean,isempty:boolean>"
    assert [types[c] for c in "hmg"] == ["map<string,string>", f"array<{struct}>", "binary"]
    rows = {row.id: row for row in shop.sql("SELECT id, h, m, g, added, late FROM {t}")}
    assert (rows[1].h, rows[101].h, rows[2].h, rows[300].h) == (PAIRS, PAIRS, {}, {"k": None})
    assert [tuple(r) for r in rows[1].m] == [(1, 3, True, False, False), (5, None, True, False, False)]
    assert (bytes(rows[1].g), rows[2].m, rows[4].added) == (bytes.fromhex(POINT), [], {"d": "e"})
    assert shop.sql("SELECT id FROM {t} WHERE h['a'] = '1' ORDER BY id") == [(1,), (101,)]
    metadata = max((shop.folder / "lake").rglob("v*.metadata.json"), key=lambda p: int(p.name.split(".")[0][1:]))
    [found] = StaticTable.from_metadata(str(metadata)).scan(EqualTo("id", 101), ("h", "m", "g")).to_arrow().to_pylist()
    assert (dict(found["h"]), found["m"][0]["upper"], found["g"]) == (PAIRS, 3, bytes.fromhex(POINT))
    shop.sql("UPDATE {t} SET h = map('a', '2'), m = array(m[0]), g = cast('x' as binary) WHERE id = 1")
    assert [(d.key, set(d.columns)) for d in shop.verify().examples] == [(("1",), {"h", "m", "g"})]
