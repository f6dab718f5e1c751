"""Arrays and ranges that the manifest makes lists in lists and structs, in DuckLake and in PostgreSQL.

``test_stored_types`` has the same in Iceberg.
"""

from __future__ import annotations

from dataclasses import replace
from typing import LiteralString

import pytest
from tests.rigs.replicated import InDuckLake, Replicated, T, in_ducklake, replicated
from tests.rigs.waiting import until

from levada.runtime.config import TableConfig
from levada.schema.stored_types import StoredTypes
from levada.status import TablePhase
from levada.values import OnUnrepresentable, QualifiedTable

__all__ = ["in_ducklake", "replicated"]

CHOSEN = {"i": "List(2)", "m": "List(2)", "f": "List(3)", "d": "Range", "n": "Range", "z": "Range"}
TYPES = TableConfig(stored_types=StoredTypes.of(CHOSEN))
ROWS: LiteralString = """
    (1, '{{1,NULL},{3,4}}', '{{sad},{NULL}}', '{{{0.1,-0},{NaN,NULL}}}', '[2024-01-01,2024-02-01]', '(0.10,1e3]',
        '[2024-03-31 01:30+02,)'),
    (2, '{}', '{}', '{}', 'empty', 'empty', 'empty'), (3, NULL, NULL, NULL, NULL, NULL, NULL),
    (4, ARRAY(SELECT ARRAY[g, -g] FROM generate_series(1, 2000) g), '{{happy,sad}}', '{{{1}},{{2}}}', '(,)', '[,NaN)',
        '(1900-01-01 00:00:00.000001+00,1900-01-01 00:00:00.000002+00)')"""
ODD: LiteralString = """
    (11, '{1}', '{{{sad}}}', '[2:2][1:1][1:1]={{{1}}}', '[2024-01-01,infinity]', NULL, '(-infinity,)')"""


def fill(shop: Replicated) -> None:
    """Make the table with copied and streamed rows, and change the type of a column, which copies the table again."""
    shop.db.execute(
        "CREATE TYPE mood AS ENUM ('sad', 'happy')",
        "CREATE TABLE t (id int PRIMARY KEY, i int[], m mood[], f float8[], d daterange, n numrange, z tstzrange)",
        "INSERT INTO t VALUES " + ROWS + "," + ODD,
    )
    shop.start(on_unrepresentable=OnUnrepresentable.NULL, tables={T: TYPES})
    shop.db.execute(
        "INSERT INTO t SELECT id + 100, i, m, f, d, n, z FROM t",
        "UPDATE t SET i = '{{7}}' WHERE id = 2",
        "ALTER TABLE t ALTER i TYPE bigint[]",
        "INSERT INTO t VALUES (200, '{{9223372036854775807}}', '{{sad}}', '{{{1e-300}}}', '[2024-01-01,2024-01-01]')",
        "DELETE FROM t WHERE id = 103",
    )
    shop.wait_caught_up()


def check(shop: Replicated, damage: LiteralString) -> None:
    """Compare, find a changed element, and repair it."""
    report = shop.verify()
    assert report.equal, report
    assert report.source_rows == report.lake_rows == 10
    shop.damage(damage)
    assert [(d.key, set(d.columns)) for d in shop.verify().examples] == [(("4",), {"i", "z"})]
    repaired = shop.verify(repair=True)
    assert repaired.repaired_equal, repaired
    assert shop.verify().equal


UNFIT: dict[str, tuple[LiteralString, str]] = {
    "n": ("numeric DEFAULT 1.25", "Decimal(4, 1)"),
    "i": ("int[] DEFAULT '{1}'", "List(2)"),
    "d": ("daterange DEFAULT '[2024-01-01,infinity]'", "Range"),
}
"""Types of columns with a value that the type chosen for them cannot hold."""


def test_a_copied_value_that_does_not_fit_parks_the_table(replicated: Replicated) -> None:
    """The policy Text is no reason to store NULL for a value that the type chosen for its column cannot hold."""
    for name, (kind, _) in UNFIT.items():
        replicated.db.execute(
            f"CREATE TABLE {name} (id int PRIMARY KEY, v {kind})",  # type: ignore[arg-type]  # made of constants
            f"INSERT INTO {name} VALUES (1)",  # type: ignore[arg-type]  # as above
        )
    chosen = {QualifiedTable("public", name): StoredTypes.of({"v": choice}) for name, (_, choice) in UNFIT.items()}
    tables = {name: TableConfig(stored_types=types) for name, types in chosen.items()}
    replicated.start(on_unrepresentable=OnUnrepresentable.TEXT, tables=tables, wait=False)
    assert replicated.pipeline is not None
    found = until(replicated.pipeline.progress, lambda p: len(p.tables) == 3 and all(t.error for t in p.tables))
    assert {t.error.code for t in found.tables if t.error} == {"unrepresentable_value"}


def test_the_hint_of_a_key_that_does_not_fit(replicated: Replicated) -> None:
    """No policy helps a key whose type was chosen. Without the choice the table has every key, copied and streamed."""
    names = ("copied", "streamed")
    replicated.db.execute(
        *(f"CREATE TABLE {name} (n numeric PRIMARY KEY)" for name in names),  # type: ignore[arg-type]  # made of constants
        "INSERT INTO copied VALUES (1.25)",
    )
    chosen = TableConfig(stored_types=StoredTypes.of({"n": "Decimal(4, 1)"}))
    tables = dict.fromkeys((QualifiedTable("public", name) for name in names), chosen)
    replicated.start(on_unrepresentable=OnUnrepresentable.TEXT, tables=tables, wait=False)
    pipeline = replicated.pipeline
    assert pipeline is not None
    until(pipeline.progress, lambda p: {t.phase for t in p.tables} == {TablePhase.ERRORED, TablePhase.READY})
    replicated.db.execute("INSERT INTO streamed VALUES (-0.001)")
    found = until(pipeline.progress, lambda p: all(t.error for t in p.tables))
    for table in found.tables:
        assert table.error is not None
        assert table.error.solution.startswith("remove the column from columns.types of the table's TableSync")
    pipeline.reconfigure(replace(pipeline.config, tables={}))
    until(pipeline.progress, lambda p: {t.phase for t in p.tables} == {TablePhase.READY})
    rows = [replicated.replica.query(f"SELECT n::text FROM shop_public.{name}") for name in names]  # type: ignore[arg-type]
    assert rows == [[("1.25",)], [("-0.001",)]]


@pytest.mark.nightly
def test_in_ducklake(in_ducklake: InDuckLake) -> None:
    """DuckDB reads the lists as it prints them, and a changed element is found."""
    fill(in_ducklake)
    with in_ducklake.lake.duckdb() as lake:
        lake.execute("USE lake.shop_public")
        types = {name: kind for name, kind, *_ in lake.execute("DESCRIBE t").fetchall()}
        rows = {row[0]: row[1:] for row in lake.execute("SELECT id, i, m, f FROM t").fetchall()}
        ranges = dict(lake.execute("SELECT id, n FROM t").fetchall())
        none = lake.execute("SELECT count(*) FROM t WHERE d IS NULL AND z IS NULL AND id % 100 = 11").fetchone()
        lake.execute("USE lake")
    assert none == (2,)
    assert (types["i"], types["m"], types["f"]) == ("BIGINT[][]", "VARCHAR[][]", "DOUBLE[][][]")
    expected = {
        i: more for i, *more in in_ducklake.db.query("SELECT id, i, m::text[], f FROM t WHERE mod(id, 100) <> 11")
    }
    assert {i: repr(list(row)) for i, row in rows.items() if i % 100 != 11} == {
        i: repr(row) for i, row in expected.items()
    }
    assert rows[11] == rows[111] == (None, None, None)
    struct = "STRUCT(lower {0}, upper {0}, lower_inc BOOLEAN, upper_inc BOOLEAN, isempty BOOLEAN)"
    assert [types[c] for c in "dnz"] == [struct.format(k) for k in ("DATE", "VARCHAR", "TIMESTAMP WITH TIME ZONE")]
    assert [tuple(ranges[i].values()) for i in (1, 2, 4)] == [
        ("0.10", "1000", False, True, False), (None, None, False, False, True), (None, "NaN", False, False, False)
    ]  # fmt: skip
    check(
        in_ducklake,
        "UPDATE t SET i = [[1::BIGINT, -1]] || [[0::BIGINT, -2]] || i[3:], z = {'lower': z.lower, 'upper': z.upper,"
        " 'lower_inc': z.lower_inc, 'upper_inc': true, 'isempty': false} WHERE id = 4",
    )


@pytest.mark.nightly
def test_in_postgresql(replicated: Replicated) -> None:
    """A column has the source's own type, and text for an enum. An array of another form is NULL there too."""
    fill(replicated)
    columns = "SELECT id, i::text, m::text, f::text, d::text, n::text, z::text FROM {} ORDER BY id"
    source = replicated.db.query(columns.format("t"))  # type: ignore[arg-type]  # made of constants
    copied = replicated.replica.query(columns.format("shop_public.t"))  # type: ignore[arg-type]  # as above
    assert copied == [row if row[0] % 100 != 11 else (row[0], *[None] * 6) for row in source]
    check(replicated, "UPDATE t SET i[2][1] = 0, z = tstzrange(lower(z), upper(z), '(]') WHERE id = 4")
