"""A table of sales with partitions: what it should hold, and a destination that writes it."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

from tests.destinations.memory import MemoryRows, Stream
from tests.rigs.lake import Lake

from levada.destinations import TableMode
from levada.destinations.iceberg import IcebergDestination
from levada.destinations.iceberg.settings import TableSettings
from levada.schema import Kind, ReplicatedTableSchema
from levada.testing import column, table
from levada.values import Durability

SALES = table(
    column(1, "id", Kind.INT8),
    column(2, "country", Kind.TEXT),
    column(3, "at", Kind.TIMESTAMPTZ),
    column(4, "amount", Kind.DECIMAL, precision=9, scale=2),
    column(5, "note", Kind.TEXT),
)
COUNTRIES = ("DE", "", None, "null", "__HIVE_DEFAULT_PARTITION__", "a/b=c%2F d#?&+", "日本 ", "..")
DAYS = [dt.datetime(1969, 12, 31, 23, 59, 59, 999999, dt.UTC), dt.datetime(1970, 1, 1, tzinfo=dt.UTC),
        dt.datetime(2026, 2, 28, 12, tzinfo=dt.UTC), dt.datetime(1, 1, 1, tzinfo=dt.UTC), None]  # fmt: skip


def settings(*partition_by: str, sort_by: tuple[str, ...] = ()) -> TableSettings:
    """Return settings as a TableSync has them."""
    return TableSettings.model_validate({"partitionBy": list(partition_by), "sortBy": list(sort_by)})


def row(i: int, **more: Any) -> dict[str, Any]:
    """Return a sale."""
    country, at = COUNTRIES[i % len(COUNTRIES)], DAYS[i % len(DAYS)]
    return {"id": i, "country": country, "at": at, "amount": Decimal(i - 5) / 4, "note": f"n{i}", **more}


class Sales:
    """A table of sales, what it should hold, and a destination that writes it."""

    def __init__(
        self,
        lake: Lake,
        by: TableSettings | None,
        *,
        schema: ReplicatedTableSchema = SALES,
        mode: TableMode = TableMode.UPSERT,
    ) -> None:
        self.lake = lake
        self.destination: IcebergDestination = lake.destination()
        self.stream = Stream(schema, mode=mode)
        self.stream.settings = by
        self.rows: dict[int, dict[str, Any]] = {}

    def copy(self, n: int, **more: Any) -> None:
        """Copy n rows in two tasks."""
        rows = [row(i, **more) for i in range(n)]
        self.rows = {r["id"]: r for r in rows}
        source = MemoryRows(self.stream.schema, rows[::2], rows[1::2])
        self.destination.write_table_rows(self.stream.target, source, self.lake.mark(1000))

    def put(self, **new: Any) -> None:
        """Insert or update a row."""
        if new["id"] in self.rows:
            self.stream.update(**new)
        else:
            self.stream.insert(**new)
        self.rows[new["id"]] = new

    def drop(self, number: int) -> None:
        """Delete a row."""
        self.stream.delete(id=number)
        del self.rows[number]

    def apply(self) -> None:
        """Apply what changed."""
        batch = self.stream.batch()
        assert self.destination.write_events(batch, self.lake.mark(batch.until)) is Durability.DURABLE

    def check(self) -> None:
        """Both readers see the rows, and nothing else."""
        rows = self.lake.rows()
        seen = {r["id"]: r for r in rows}
        assert len(rows) == len(self.rows)
        assert {i: {n: _utc(v) for n, v in r.items()} for i, r in seen.items()} == {
            i: {n: _utc(r.get(n)) for n in seen[i]} for i, r in self.rows.items()
        }

    def files(self, columns: str = "*") -> list[Any]:
        """Return the current files."""
        name = self.lake.spark_name()
        return self.lake.spark.sql(f"SELECT {columns} FROM {name}.files").collect()


def _utc(value: Any) -> Any:
    return value.astimezone(dt.UTC) if isinstance(value, dt.datetime) else value
