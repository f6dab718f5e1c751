"""The types that ``columns.types`` chooses, in Iceberg: copied and streamed values are the source's."""

from __future__ import annotations

import hashlib
from typing import LiteralString
from uuid import UUID

import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.table import StaticTable
from tests.rigs.verified_shop import Shop
from tests.verify.every_type import COLUMNS, TYPES, create, insert

from levada.runtime.config import TableConfig
from levada.schema.stored_types import StoredTypes
from levada.values import OnUnrepresentable, QualifiedTable

TABLE = QualifiedTable("public", "t")


def choose(shop: Shop, types: dict[str, str], **settings: object) -> None:
    """Give columns of table t these types."""
    shop.config["tables"] = {TABLE: TableConfig(stored_types=StoredTypes.of(types), **settings)}  # type: ignore[arg-type]


@pytest.mark.nightly
def test_every_type_as_text(shop: Shop) -> None:
    """Text holds the values of every type as PostgreSQL writes them, and the table verifies equal."""
    choose(shop, dict.fromkeys([*COLUMNS, "id"], "Text"))
    shop.db.execute(*TYPES, create())  # type: ignore[arg-type]  # made of constants
    shop.db.execute(insert(1))  # type: ignore[arg-type]  # made of constants
    shop.start()
    shop.wait_caught_up()
    shop.db.execute(insert(11))  # type: ignore[arg-type]  # made of constants
    report = shop.verify()
    assert report.equal, report.examples
    assert (report.source_rows, report.lake_rows, report.not_compared) == (8, 8, ())
    texts = ", ".join(f'CASE WHEN "{c}" IS DISTINCT FROM NULL THEN concat("{c}") END' for c in ("id", *COLUMNS))
    with shop.db.connect() as connection:
        connection.execute("SET bytea_output = 'hex'; SET timezone = 'UTC'; SET extra_float_digits = 3")
        expected = connection.execute(f"SELECT {texts} FROM t ORDER BY id").fetchall()  # type: ignore[call-overload]
    assert [tuple(row) for row in shop.sql("SELECT * FROM {t} ORDER BY cast(id AS int)")] == expected


NUMBERS: LiteralString = """
    (1, 1.5), (2, -1.500000), (3, 0), (4, NULL), (5, 99999999999999999999.9999), (6, 0.0001), (7, -0.0001000)"""
ODD: LiteralString = "(11, 'NaN'), (12, 'Infinity'), (13, 1e20), (14, 0.00001), (15, -1e300), (16, 1e-300)"


@pytest.mark.nightly
def test_a_numeric_as_a_decimal(shop: Shop) -> None:
    """A value that does not fit is NULL under that policy, in the copy and in the stream, and verifies equal."""
    shop.policy = OnUnrepresentable.NULL
    choose(shop, {"n": "Decimal(24, 4)"})
    shop.db.execute("CREATE TABLE t (id int PRIMARY KEY, n numeric)", "INSERT INTO t VALUES " + NUMBERS + ", " + ODD)
    shop.start()
    shop.wait_caught_up()
    shop.db.execute("INSERT INTO t SELECT id + 100, n FROM t")
    report = shop.verify()
    assert report.equal, report.examples
    fits = [str(n) for _, n in shop.db.query("SELECT id, round(n, 4) FROM t WHERE id < 10 ORDER BY id")]
    lake = shop.sql("SELECT id, CAST(n AS string) AS n FROM {t} ORDER BY id")
    assert [str(n) for i, n in lake if i % 100 < 10] == fits * 2
    assert [n for i, n in lake if i % 100 > 10] == [None] * 12


def test_a_value_that_does_not_fit_parks_the_table(shop: Shop) -> None:
    """Under the policy Error, the message names the column, and no value is rounded."""
    choose(shop, {"n": "Decimal(4, 2)"})
    shop.db.execute("CREATE TABLE t (id int PRIMARY KEY, n numeric)", "INSERT INTO t VALUES (1, 1.25)")
    shop.start()
    shop.wait_caught_up()
    shop.db.execute("INSERT INTO t VALUES (2, 1.255)")
    progress = shop.wait(lambda p: p.tables[0].error is not None)
    error = progress.tables[0].error
    assert error is not None
    assert error.code == "unrepresentable_value"
    assert "column n (numeric)" in error.reason


VECTORS: LiteralString = """
    (1, '[1,2.5,-0]', '[1,-0,0.1]'), (2, '[1e-45,3.4028235e38,0.1]', '[65504,6e-8,-1]'), (3, NULL, NULL),
    (4, array_fill(0.1, ARRAY[3])::real[]::vector, array_fill(0.3, ARRAY[4000])::real[]::halfvec)"""


@pytest.mark.nightly
def test_a_vector_as_a_list(shop: Shop) -> None:
    """The numbers of vector and halfvec are equal, also in a vector of thousands of them, and any engine reads them."""
    if not shop.db.query("SELECT FROM pg_available_extensions WHERE name = 'vector' AND default_version >= '0.7'"):
        pytest.skip("the server has no pgvector with halfvec")
    choose(shop, {"v": "List", "h": "List"})
    shop.db.execute(
        "CREATE EXTENSION vector",
        "CREATE TABLE t (id int PRIMARY KEY, v vector(3), h halfvec)",
        "INSERT INTO t VALUES " + VECTORS,
    )
    shop.start()
    shop.wait_caught_up()
    shop.db.execute("INSERT INTO t SELECT id + 10, v, h FROM t", "UPDATE t SET v = '[7,7,7]' WHERE id = 3")
    report = shop.verify()
    assert report.equal, report.examples
    assert [(c, t) for c, t, _ in shop.sql("DESCRIBE {t}")[1:3]] == [("v", "array<float>"), ("h", "array<float>")]
    expected = shop.db.query("SELECT id, v::real[]::text, h::real[]::text FROM t ORDER BY id")
    read = shop.sql("SELECT id, CAST(v AS string) AS v, h FROM {t} ORDER BY id")
    assert len(read[3].h) == 4000
    assert [r.v is None for r in read] == [v is None for _, v, _ in expected]
    shop.sql("UPDATE {t} SET h = transform(h, x -> if(x = 65504, 65505, x)) WHERE id = 2")
    assert not shop.verify().equal


GRIDS: LiteralString = """
    (1, '{{1,2},{NULL,-4}}', '{{"a,b","}"},{NULL,""}}', '{{{NaN,-0}}}', '{{0.01},{-1.10}}', '{{2024-01-01,NULL}}',
        '{{sad},{NULL}}', '{{00:00:00.000001}}', '{{"\\\\x00ff"}}'),
    (2, '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}'), (3, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)"""
ODD_GRIDS: LiteralString = """
    (11, '{1,2}', '{{{x}}}', '{{1}}', '{{NaN}}', '{{infinity},{2024-01-01}}', '[2:2][1:1]={{sad}}', '{{24:00}}',
        '{x}')"""


@pytest.mark.nightly
def test_arrays_of_several_dimensions_as_nested_lists(shop: Shop) -> None:
    """Equal in the copy and in the stream. Other dimensions and bounds are NULL under that policy, as odd elements."""
    shop.policy = OnUnrepresentable.NULL
    kinds = {
        "i": "int",
        "t": "text",
        "f": "real",
        "n": "numeric(38,9)",
        "d": "date",
        "m": "mood",
        "c": "time",
        "b": "bytea",
    }
    choose(shop, {name: "List(3)" if name == "f" else "List(2)" for name in kinds})
    columns = ", ".join(f"{name} {kind}[]" for name, kind in kinds.items())
    shop.db.execute(
        TYPES[0],
        f"CREATE TABLE t (id int PRIMARY KEY, {columns})",  # type: ignore[arg-type]  # made of constants
        "INSERT INTO t VALUES " + GRIDS + "," + ODD_GRIDS,
    )
    shop.start()
    shop.wait_caught_up()
    shop.db.execute(
        "INSERT INTO t SELECT id + 100, i, t, f, n, d, m, c, b FROM t",
        "ALTER TABLE t ADD added int[] DEFAULT '{5}'",
        "INSERT INTO t (id, i) VALUES (200, '{{7}}')",
    )
    report = shop.verify()
    assert report.equal, report.examples
    assert report.source_rows == report.lake_rows == 9
    described = {c: t for c, t, _ in shop.sql("DESCRIBE {t}")}
    assert (described["i"], described["f"]) == ("array<array<int>>", "array<array<array<float>>>")
    read = {row.id: row for row in shop.sql("SELECT * FROM {t}")}
    for first in (0, 100):
        assert (read[first + 1].i, read[first + 1].t) == ([[1, 2], [None, -4]], [["a,b", "}"], [None, ""]])
        assert (read[first + 2].i, read[first + 3].i) == ([], None)
        assert all(read[first + 11][name] is None for name in kinds)
    metadata = max((shop.folder / "lake").rglob("v*.metadata.json"), key=lambda p: int(p.name.split(".")[0][1:]))
    found = StaticTable.from_metadata(str(metadata)).scan(row_filter=EqualTo("id", 101)).to_arrow().to_pylist()
    assert (found[0]["i"], found[0]["t"]) == ([[1, 2], [None, -4]], [["a,b", "}"], [None, ""]])
    for number, name in enumerate(kinds):
        shop.sql(f"UPDATE {{t}} SET {name} = array() WHERE id = {1 + 100 * (number % 2)}")
    assert {d.key: set(d.columns) for d in shop.verify().examples} == {
        ("1",): {*list(kinds)[::2]},
        ("101",): {*list(kinds)[1::2]},
    }


RANGES: LiteralString = """
    (1, '[1,5)', '[-9223372036854775808,)', '[0.10,NaN]', '[0044-03-15 BC,9999-12-31]',
        '(2024-01-01,2024-01-01 00:00:00.000001]', '(,1900-01-01 00:00+00]'),
    (2, 'empty', 'empty', 'empty', 'empty', 'empty', 'empty'), (3, '(,)', '(,)', '(,)', '(,)', '(,)', '(,)'),
    (4, NULL, NULL, NULL, NULL, NULL, NULL), (11, '[7,7]', NULL, NULL, '[2024-01-01,infinity]', NULL, '[-infinity,)')"""


@pytest.mark.nightly
def test_ranges_as_structs(shop: Shop) -> None:
    """Equal in the copy and in the stream. A range with an infinite date is NULL under that policy."""
    shop.policy = OnUnrepresentable.NULL
    kinds = {"i": "int4", "l": "int8", "n": "num", "d": "date", "s": "ts", "z": "tstz"}
    choose(shop, dict.fromkeys([*kinds, "added"], "Range"))
    columns = ", ".join(f"{name} {kind}range" for name, kind in kinds.items())
    shop.db.execute(
        f"CREATE TABLE t (id int PRIMARY KEY, {columns})",  # type: ignore[arg-type]  # made of constants
        "INSERT INTO t VALUES " + RANGES,
    )
    shop.start()
    shop.wait_caught_up()
    shop.db.execute(
        "INSERT INTO t SELECT id + 100, i, l, n, d, s, z FROM t",
        "UPDATE t SET i = '[8,9)' WHERE id = 2",
        "ALTER TABLE t ADD added int4range DEFAULT '[1,2)'",
        "INSERT INTO t (id, i) VALUES (200, '[3,4)')",
    )
    report = shop.verify()
    assert report.equal, report.examples
    assert report.source_rows == report.lake_rows == 11
    read = {row.id: row for row in shop.sql("SELECT id, i, n, z, added, d IS NULL AS no_d FROM {t}")}
    for first in (0, 100):
        assert tuple(read[first + 1].i) == (1, 5, True, False, False)
        assert tuple(read[first + 1].n) == ("0.10", "NaN", True, True, False)
        assert tuple(read[first + 3].i) == (None, None, False, False, False)
        assert (read[first + 4].i, read[first + 11].no_d, read[first + 11].z) == (None, True, None)
    assert tuple(read[102].z) == (None, None, False, False, True)
    assert shop.sql("SELECT id FROM {t} WHERE i.lower = 8 AND NOT i.isempty") == [(2,)]
    metadata = max((shop.folder / "lake").rglob("v*.metadata.json"), key=lambda p: int(p.name.split(".")[0][1:]))
    [found] = StaticTable.from_metadata(str(metadata)).scan(EqualTo("id", 2), ("i",)).to_arrow().to_pylist()
    assert found["i"] == {"lower": 8, "upper": 9, "lower_inc": True, "upper_inc": False, "isempty": False}
    assert {tuple(row.added) for row in read.values()} == {(1, 2, True, False, False)}
    shop.sql(
        "UPDATE {t} SET s = named_struct('lower', s.lower, 'upper', s.upper, 'lower_inc', true,"
        " 'upper_inc', s.upper_inc, 'isempty', false) WHERE id IN (1, 101)"
    )
    assert {(d.key, d.columns) for d in shop.verify().examples} == {(("1",), ("s",)), (("101",), ("s",))}


def md5_of(text: str) -> str:
    """Return the digits of PostgreSQL's md5."""
    return hashlib.md5(text.encode()).hexdigest()  # as the source's statement


@pytest.mark.nightly
def test_a_uuid_as_icebergs_own(shop: Shop) -> None:
    """In the key, in the copy and in the stream. Spark reads text, and PyIceberg a uuid."""
    choose(shop, {"id": "Uuid", "other": "Uuid", "another": "Uuid"})
    shop.db.execute(
        "CREATE TABLE t (id uuid PRIMARY KEY, other uuid, n int)",
        "INSERT INTO t SELECT md5(g::text)::uuid, CASE WHEN g % 3 > 0 THEN md5(g || 'o')::uuid END, g"
        " FROM generate_series(1, 100) g",
    )
    shop.start()
    shop.wait_caught_up()
    shop.db.execute(
        "UPDATE t SET n = -n WHERE n % 5 = 0",
        "DELETE FROM t WHERE n % 7 = 0",
        "UPDATE t SET id = 'FFFFFFFF-FFFF-FFFF-FFFF-FFFFFFFFFFFF' WHERE n = 1",
        "INSERT INTO t VALUES ('00000000-0000-0000-0000-000000000000', NULL, 0)",
        "ALTER TABLE t ADD added uuid DEFAULT 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'",
        "INSERT INTO t VALUES ('00000000-0000-0000-0000-000000000001')",
    )
    report = shop.verify()
    assert report.equal, report.examples
    assert shop.sql("SELECT CAST(other AS string) FROM {t} WHERE id = '" + str(UUID(md5_of("4"))) + "'") == [
        (str(UUID(md5_of("4o"))),)
    ]
    ids = [str(i) for [i] in shop.db.query("SELECT id FROM t ORDER BY mod(n, 10), n LIMIT 8")]
    # Each by a scan of its own. Spark compares UUIDs as signed numbers, and would pass over files by their bounds.
    found = " UNION ALL ".join(f"SELECT count(*) FROM {{t}} WHERE id = '{i}'" for i in ids)
    assert shop.sql(found) == [(1,)] * len(ids)
    metadata = max((shop.folder / "lake").rglob("v*.metadata.json"), key=lambda p: int(p.name.split(".")[0][1:]))
    table = StaticTable.from_metadata(str(metadata))
    assert table.scan(row_filter=EqualTo("id", UUID(int=0))).to_arrow()["id"].to_pylist() == [UUID(int=0)]
    whole = table.scan().to_arrow()["id"].to_pylist()
    assert sorted(whole) == [i for [i] in shop.db.query("SELECT id FROM t ORDER BY id")]
    # Also after a rename, which is a change of properties too, and in files that Spark writes.
    shop.db.execute("ALTER TABLE t RENAME other TO another", "UPDATE t SET n = 0 WHERE n = 4")
    shop.wait_caught_up()
    shop.sql(
        "REFRESH TABLE {t}; CALL {c}.system.rewrite_data_files(table => {p}, options => map('rewrite-all', 'true'))"
    )
    assert shop.sql(found) == [(1,)] * len(ids)
    assert shop.verify().equal
    shop.sql("UPDATE {t} SET n = 1 WHERE id = '00000000-0000-0000-0000-000000000000'")
    assert [d.key for d in shop.verify().examples] == [("00000000-0000-0000-0000-000000000000",)]
