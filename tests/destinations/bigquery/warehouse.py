"""Datasets of BigQuery on an emulator, and the steps that their tests share."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from pyarrow.types import is_nested
from tests.destinations.memory import MemoryRows, Stream
from tests.servers.bigquery import PROJECT, Emulator

from levada.destinations import DestinationContext
from levada.destinations.bigquery import BigQueryDestination
from levada.destinations.bigquery.settings import Settings
from levada.errors import LevadaError
from levada.schema import Kind, ReplicatedTableSchema, TableTarget
from levada.schema.changes import OP
from levada.testing import column, fold_changelog, table
from levada.values import Durability, Lsn, QualifiedTable, TableMode, Watermark

ORDERS = table(column(1, "id", Kind.INT8), column(2, "item", Kind.TEXT), column(3, "note", Kind.TEXT))


@dataclass
class Warehouse:
    """The datasets of one test."""

    server: Emulator
    manifest: dict[str, Any]
    context: DestinationContext
    dataset: str

    def destination(self, **context: Any) -> BigQueryDestination:
        """A destination as a process that just started has it."""
        settings = Settings.model_validate(self.manifest)
        made = BigQueryDestination.from_settings(settings, replace(self.context, **context))
        made.startup()
        return made

    def mark(self, lsn: int, epoch: int = 1) -> Watermark:
        return Watermark(self.context.pipeline, epoch, Lsn(lsn))

    def rows(self, name: str = "orders", columns: str = "*") -> list[list[Any]]:
        return self.server.sql(f"SELECT {columns} FROM `{PROJECT}`.`{self.dataset}`.`{name}` ORDER BY 1")

    def items(self) -> dict[int, Any]:
        return {int(i): item for i, item in self.rows(columns="id, item")}

    def read_back(self, target: TableTarget) -> list[dict[str, Any]]:
        """Return the rows of a table in the types of the source, by BigQuery's own client."""
        found = self.server.read(self.dataset, target.name.name)
        columns = {}
        for name in found.column_names:
            source = next((c for c in target.schema.columns if c.name == name), None)
            values = found.column(name)
            if source is not None and is_nested(source.type.arrow):
                columns[name] = [None if v is None else json.loads(v) for v in values.to_pylist()]
            else:
                columns[name] = (values if source is None else values.cast(source.type.arrow)).to_pylist()
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        return fold_changelog(target.schema, rows) if OP in found.column_names else rows

    def staged(self) -> set[str]:
        """The tables of the metadata dataset that are no state."""
        return {t for t in self.server.tables(f"{self.dataset}_meta") if not t.startswith("state_")}


def copy(
    warehouse: Warehouse,
    destination: BigQueryDestination,
    schema: ReplicatedTableSchema = ORDERS,
    n: int = 3,
    *,
    mode: TableMode = TableMode.UPSERT,
    name: QualifiedTable | None = None,
    epoch: int = 1,
) -> Stream:
    """Copy rows 1 to n as of LSN 1000. The stream returned has the changes after that."""
    target = TableTarget.of(schema, mode, name)
    rows = [{"id": i, "item": f"item {i}", "note": "x" * 100} for i in range(1, n + 1)]
    destination.write_table_rows(target, MemoryRows(schema, rows[::2], rows[1::2]), warehouse.mark(1000, epoch))
    return Stream(schema, mode=mode)


def apply(warehouse: Warehouse, destination: BigQueryDestination, stream: Stream, *, epoch: int = 1) -> None:
    """Apply what the stream has since the last batch."""
    batch = stream.batch()
    assert destination.write_events(batch, warehouse.mark(batch.until, epoch)) is Durability.DURABLE


def error_of(call: Callable[[], object]) -> LevadaError:
    """Return the error that the call raises."""
    with pytest.raises(LevadaError) as caught:
        call()
    return caught.value
