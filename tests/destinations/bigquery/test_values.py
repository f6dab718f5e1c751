"""Keys and values of every type in BigQuery, and those that it lacks."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from tests.destinations.bigquery.warehouse import Warehouse, apply, copy, error_of
from tests.destinations.memory import MemoryRows, Stream

from levada.destinations.bigquery.json_text import json_values
from levada.errors import Unrepresentable
from levada.schema import Column, ColumnType, Kind, TableTarget
from levada.testing import ArrowRows, column, table


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (column(1, "k", Kind.FLOAT8), [float("nan"), -0.0, 1.5]),
        (column(1, "k", Kind.JSON), ['{"a": 1}', "1.10", "1.1"]),
        (column(1, "k", Kind.BYTEA), [b"", b"\x00", b"\xff"]),
        (column(1, "k", Kind.TIMESTAMPTZ), [dt.datetime(y, 1, 1, tzinfo=dt.UTC) for y in (1, 1970, 9999)]),
        (column(1, "k", Kind.DATE), [dt.date(1, 1, 1), dt.date(1970, 1, 1), dt.date(9999, 12, 31)]),
        (column(1, "k", Kind.TIME), [dt.time(0), dt.time(1, 2, 3, 4), dt.time(23, 59, 59, 999999)]),
        (column(1, "k", Kind.DECIMAL, precision=20, scale=4), [Decimal("-1.5"), Decimal("0"), Decimal("1e15")]),
        (column(1, "k", Kind.BOOL), [True, False]),
        (column(1, "k", Kind.TEXT), ["", "a'b\\", "ü"]),
        (column(1, "k", Kind.ARRAY, element=ColumnType(Kind.INT4)), [[], [None], [1, 2]]),
    ],
    ids=lambda v: v.type.kind.value if isinstance(v, Column) else "",
)
def test_keys_of_every_type(warehouse: Warehouse, kind: Column, values: list[Any]) -> None:
    """A row is updated and deleted by a key of any type, and never doubled."""
    if kind.type.kind is Kind.JSON:
        kind = replace(kind, type_oid=3802)
        warehouse.manifest["jsonb"] = "String"
    schema = table(kind, column(2, "v", Kind.INT8), name="public.keyed")
    destination = warehouse.destination()
    rows = [{"k": k, "v": n} for n, k in enumerate(values)]
    destination.write_table_rows(TableTarget.of(schema), MemoryRows(schema, rows), warehouse.mark(1000))
    stream = Stream(schema)
    for n, k in enumerate(values):
        stream.update(k=k, v=100 + n)
    stream.delete(k=values[0])
    apply(warehouse, destination, stream)
    found = warehouse.rows("keyed", "v")
    assert sorted(int(v) for (v,) in found) == [100 + n for n in range(1, len(values))]


def test_a_key_that_bigquery_does_not_distinguish(warehouse: Warehouse) -> None:
    """A key of jsonb is refused before anything is written, because 1.10 and 1.1 would be one row."""
    kinds = (
        replace(column(1, "k", Kind.JSON), type_oid=3802),
        replace(column(1, "k", Kind.ARRAY, element=ColumnType(Kind.JSON)), type_oid=3807),
    )
    for kind in kinds:
        schema = table(kind, column(2, "v", Kind.INT8), name="public.keyed")
        destination, target = warehouse.destination(), TableTarget.of(schema)
        rows = MemoryRows(schema, [])
        for call in (
            lambda d=destination, t=target: d.check_place(t),
            lambda d=destination, t=target, r=rows: d.write_table_rows(t, r, warehouse.mark(1000)),
        ):
            assert error_of(call).code == "key_unsupported"
        assert warehouse.server.tables(f"{warehouse.dataset}_meta") == set()


def test_more_columns_than_a_query_can_name(warehouse: Warehouse) -> None:
    """A table whose changes would exceed BigQuery's limit of a query is refused before it is copied."""
    wide = [column(n, f"{'c' * 280}{n}", Kind.INT8) for n in range(2, 1000)]
    schema = table(column(1, "id", Kind.INT8), *wide, name="public.wide")
    destination, target = warehouse.destination(), TableTarget.of(schema)
    error = error_of(lambda: destination.check_place(target))
    assert error.code == "query_too_large"
    assert "columns.exclude" in error.hint
    narrow = table(column(1, "id", Kind.INT8), *wide[:100], name="public.wide")
    destination.check_place(TableTarget.of(narrow))


@pytest.mark.parametrize("day", ["10000-01-01", "0001-01-01 BC"])
def test_a_year_that_bigquery_lacks(warehouse: Warehouse, day: str) -> None:
    """A date outside of the years 1 to 9999 parks the table, in the stream and in a copy, without its value."""
    schema = table(column(1, "id", Kind.INT8), column(2, "day", Kind.DATE), name="public.days")
    destination = warehouse.destination()
    days = {"10000-01-01": 2932897, "0001-01-01 BC": -719528}[day]
    columns = [pa.array([1]), pa.array([days], pa.int32()).cast(pa.date32())]
    batch = pa.RecordBatch.from_arrays(columns, schema=schema.arrow)
    target, rows = TableTarget.of(schema), ArrowRows(schema, batch)
    error = error_of(lambda: destination.write_table_rows(target, rows, warehouse.mark(1000)))
    assert (type(error), error.code) == (Unrepresentable, "unrepresentable_value")
    assert "Text" in error.hint
    assert day not in str(error)
    assert destination.applied(schema.id) is None


@pytest.mark.parametrize(
    ("kind", "values", "text"),
    [
        (
            ColumnType(Kind.DECIMAL, precision=20, scale=10),
            ["0.0000001", "0", "-1.5", None],
            '["0.0000001000","0.0000000000","-1.5000000000",null]',
        ),
        (
            ColumnType(Kind.DATE),
            [17_542_950, -719_163, -719_162, 2_932_896, None],
            '["50000-12-19","0001-12-31 BC","0001-01-01","9999-12-31",null]',
        ),
        (
            ColumnType(Kind.TIMESTAMPTZ),
            [9_145_440_000_000_000_000, -62_135_596_800_000_001, 1, None],
            '["291777-06-16 00:00:00+00","0001-12-31 23:59:59.999999+00 BC","1970-01-01 00:00:00.000001+00",null]',
        ),
    ],
    ids=["decimals", "dates", "times"],
)
def test_elements_of_arrays_as_postgres_prints_them(kind: ColumnType, values: list[Any], text: str) -> None:
    """Small decimals have no exponent in an array, and days have their era and years of any length."""
    if kind.kind is Kind.DECIMAL:
        elements = pa.array([None if v is None else Decimal(v) for v in values], kind.arrow)
    else:
        elements = pa.array(values, pa.int32() if kind.kind is Kind.DATE else pa.int64()).view(kind.arrow)
    lists = pa.ListArray.from_arrays([0, len(elements), len(elements)], elements)
    assert json_values(lists, ColumnType(Kind.ARRAY, element=kind)).to_pylist() == [text, "[]"]


def test_a_row_that_is_too_large(warehouse: Warehouse) -> None:
    """A row above 10 MB parks the table. Rows that are larger only together are split."""
    destination = warehouse.destination()
    stream = copy(warehouse, destination)
    for n in range(4, 9):
        stream.insert(id=n, item="x" * 4_000_000, note=None)
    apply(warehouse, destination, stream)
    assert len(warehouse.items()) == 8
    stream.insert(id=9, item="y" * 10_500_000, note=None)
    error = error_of(lambda: apply(warehouse, destination, stream))
    assert error.code == "row_too_large"
    assert "yyy" not in str(error)
    assert warehouse.staged() == set()
