"""The table of docs/guides/stored-types.md on readers, from tables that each reader has read."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from tests.rigs.lake import Lake
from tests.servers.ducklake import DuckLake

from levada.destinations import Destination
from levada.schema import Column, ColumnType, Kind
from levada.schema.types import Notation
from levada.testing.destinations.steps import copy
from levada.testing.rows import ArrowRows
from levada.testing.source import Source, column, table

PAGE: Final = Path(__file__).parents[2] / "docs" / "guides" / "stored-types.md"
HEAD: Final = "| PostgreSQL | `columns.types` | Spark | PyIceberg | DuckDB, of DuckLake |\n|---|---|---|---|---|\n"
_IDS: Final = re.compile(r"\d+: |optional |required ")
_FLAGS: Final = re.compile(r"lower_inc.*isempty:? ?boolean", re.IGNORECASE)
RANGE: Final = ColumnType(Kind.RANGE, element=ColumnType(Kind.DATE))
_DAYS: Final = {"lower": dt.date(2026, 1, 1), "upper": None, "lower_inc": True, "upper_inc": False, "isempty": False}
_INTS: Final = ColumnType(Kind.ARRAY, element=ColumnType(Kind.INT4))
TYPES: Final[Mapping[tuple[str, str], tuple[ColumnType, Any]]] = {
    ("`boolean`", ""): (ColumnType(Kind.BOOL), True),
    ("`smallint`", ""): (ColumnType(Kind.INT2), 1),
    ("`integer`", ""): (ColumnType(Kind.INT4), 1),
    ("`bigint`, `oid`", ""): (ColumnType(Kind.INT8), 1 << 40),
    ("`real`", ""): (ColumnType(Kind.FLOAT4), 1.5),
    ("`double precision`", ""): (ColumnType(Kind.FLOAT8), 0.1),
    ("`numeric(9,2)`", ""): (ColumnType(Kind.DECIMAL, 9, 2), Decimal("1.50")),
    ("`numeric`", "`Decimal(38, 9)`"): (ColumnType(Kind.DECIMAL, 38, 9), Decimal("1.500000000")),
    ("`text`, `json`, `jsonb`, all others", ""): (ColumnType(Kind.TEXT), "text"),
    ("Any", "`Text`"): (ColumnType(Kind.TEXT), "text"),
    ("`bytea`", ""): (ColumnType(Kind.BYTEA), b"\x00\xff"),
    ("`date`", ""): (ColumnType(Kind.DATE), dt.date(2026, 1, 1)),
    ("`time`", ""): (ColumnType(Kind.TIME), dt.time(1, 2, 3)),
    ("`timestamp`", ""): (ColumnType(Kind.TIMESTAMP), dt.datetime(2026, 1, 1, 1, 2, 3)),
    ("`timestamptz`", ""): (ColumnType(Kind.TIMESTAMPTZ), dt.datetime(2026, 1, 1, 1, 2, 3, tzinfo=dt.UTC)),
    ("`uuid`", ""): (ColumnType(Kind.UUID), "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ("`uuid`", "`Uuid`"): (ColumnType(Kind.UUID, native=True), "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ("`int[]`", ""): (_INTS, [1, None]),
    ("`int[][]`", "`List(2)`"): (ColumnType(Kind.ARRAY, element=_INTS), [[1, None], []]),
    ("`vector`, `halfvec`", "`List`"): (
        ColumnType(Kind.ARRAY, element=ColumnType(Kind.FLOAT4), notation=Notation.VECTOR), [1.5]),
    ("`daterange`", "`Range`"): (RANGE, _DAYS),
    ("`datemultirange`", "`Multirange`"): (
        ColumnType(Kind.ARRAY, element=RANGE, notation=Notation.MULTIRANGE), [_DAYS]),
    ("`hstore`", "`Map`"): (ColumnType(Kind.MAP), [("a", "b"), ("c", None)]),
    ("`geometry`, `geography`", "`Wkb`"): (ColumnType(Kind.BYTEA, notation=Notation.EWKB), b"\x01\x02"),
}  # fmt: skip
"""The types by their name in PostgreSQL and in a manifest, each with a value."""


def columns() -> tuple[Column, ...]:
    """Return the key and a column for each type."""
    typed = (Column(n, f"c{n}", kind, "", 0, nullable=True) for n, (kind, _) in enumerate(TYPES.values(), 2))
    return (column(1, "id", Kind.INT8), *typed)


def written(destination: Destination, source: Source) -> list[dict[str, Any]]:
    """Write a row with values and one with NULL in every column, and return both."""
    schema = table(*columns(), name="public.kinds")
    values = {f"c{n}": value for n, (_, value) in enumerate(TYPES.values(), 2)}
    rows: list[dict[str, Any]] = [{"id": 1, **values}, {"id": 2, **dict.fromkeys(values)}]
    destination.startup()
    copy(destination, source, source.add(schema), ArrowRows.of(schema, rows))
    return rows


def cell(name: str, kind: str, rows: list[dict[str, Any]], expected: list[dict[str, Any]]) -> str:
    """Return what a reader makes of a column. A value is the source's, or the cell says in which form it is."""
    found, null = (row[name] for row in sorted(rows, key=lambda row: row["id"]))
    value, shown = expected[0][name], f"`{_FLAGS.sub('…', _IDS.sub('', kind))}`"
    if isinstance(found, UUID):
        found = str(found)
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        found = found.astimezone(dt.UTC)
    if isinstance(value, dt.time) and isinstance(found, str):
        value = value.isoformat(timespec="microseconds")
    assert repr(found) == repr(value), (name, kind)
    return shown if null is None else f"{shown}, with NULL as `{null}`"


def lines(hadoop: Lake, ducklake: DuckLake) -> Iterator[str]:
    """Yield the rows of the table."""
    iceberg, lake = hadoop.destination(), ducklake.destination()
    expected = written(iceberg, Source(pipeline=hadoop.context.pipeline))
    written(lake, Source(pipeline=ducklake.context.pipeline))
    iceberg.shutdown()
    lake.shutdown()
    name = "kinds"
    by_spark, by_pyiceberg = hadoop.by_spark(name).to_pylist(), hadoop.by_pyiceberg(name).to_pylist()
    spark = {f.name: f.dataType.simpleString() for f in hadoop.spark.table(hadoop.spark_name(name)).schema}
    pyiceberg = {f.name: str(f.field_type) for f in hadoop.iceberg(name).schema().fields}
    by_duckdb = ducklake.rows("kinds")
    duckdb = {row[0]: row[1] for row in ducklake.sql("DESCRIBE shop_public.kinds")}
    for n, (postgresql, chosen) in enumerate(TYPES, 2):
        c = f"c{n}"
        cells = (
            cell(c, spark[c], by_spark, expected),
            cell(c, pyiceberg[c], by_pyiceberg, expected),
            cell(c, duckdb[c], by_duckdb, expected),
        )
        yield f"| {postgresql} | {chosen} | {' | '.join(cells)} |\n"


def test_the_table_of_the_page(hadoop: Lake, ducklake: DuckLake) -> None:
    """Each reader reads each stored type, and NULL, as the page says."""
    made = HEAD + "".join(lines(hadoop, ducklake))
    assert made in PAGE.read_text(), f"write this into {PAGE.name}:\n{made}"
