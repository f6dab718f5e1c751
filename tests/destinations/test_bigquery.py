"""The BigQuery destination, on an emulator."""

from __future__ import annotations

import datetime as dt
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from tests.destinations.memory import MemoryRows, Stream
from tests.servers.bigquery import PROJECT, Emulator, emulator

from levada.destinations import DestinationContext
from levada.destinations.bigquery import BigQueryDestination
from levada.destinations.bigquery.settings import Settings
from levada.schema import Column, Kind, ReplicatedTableSchema, TableTarget
from levada.schema.changes import OP
from levada.testing import DestinationConformance, DestinationPlace, column, fold_changelog, table
from levada.values import Durability, Lsn, QualifiedTable, TableId, TableMode, Watermark

ORDERS = table(column(1, "id", Kind.INT8), column(2, "item", Kind.TEXT), column(3, "note", Kind.TEXT))
_numbers = itertools.count(1)


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
            if source is not None and source.type.kind is Kind.ARRAY:
                columns[name] = [None if v is None else json.loads(v) for v in values.to_pylist()]
            else:
                columns[name] = (values if source is None else values.cast(source.type.arrow)).to_pylist()
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        return fold_changelog(target.schema, rows) if OP in found.column_names else rows

    def staged(self) -> set[str]:
        """The tables of the metadata dataset that are no state."""
        return {t for t in self.server.tables(f"{self.dataset}_meta") if not t.startswith("state_")}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    """One emulator for the module."""
    with emulator(tmp_path_factory.mktemp("bigquery")) as found:
        yield found


@pytest.fixture
def warehouse(server: Emulator, tmp_path: Path) -> Warehouse:
    """Datasets without tables."""
    dataset = f"shop_{next(_numbers)}"
    manifest = {
        "project": PROJECT,
        "dataset": dataset,
        "metadataDataset": f"{dataset}_meta",
        "endpoint": server.endpoint,
    }
    return Warehouse(server, manifest, DestinationContext("shop", tmp_path), dataset)


@dataclass(frozen=True)
class InChild:
    """Opens the destination in another process."""

    manifest: dict[str, Any]
    context: DestinationContext

    def __call__(self) -> BigQueryDestination:
        return BigQueryDestination.from_settings(Settings.model_validate(self.manifest), self.context)


def shown(column: Column, value: Any) -> Any:
    """Return a value as `read_back` has it: arrays are JSON."""
    if column.type.kind is Kind.ARRAY:
        return [e.strftime("%Y-%m-%d %H:%M:%S.%f+00") if isinstance(e, dt.datetime) else e for e in value]
    return value


class TestConformance(DestinationConformance):
    """The conformance suite, read back by BigQuery's own client."""

    @pytest.fixture
    def place(self, warehouse: Warehouse) -> DestinationPlace:
        """Return datasets without tables."""
        return DestinationPlace(
            open=lambda: InChild(warehouse.manifest, warehouse.context)(),
            read=warehouse.read_back,
            shown=shown,
            in_child=InChild(warehouse.manifest, warehouse.context),
        )


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


def test_copy_then_changes(warehouse: Warehouse) -> None:
    """A copy and a batch of changes leave the last state of each row, and no staging table."""
    destination = warehouse.destination()
    stream = copy(warehouse, destination)
    assert destination.applied(ORDERS.id) == warehouse.mark(1000)
    stream.update(id=1, item="A", note="n")
    stream.delete(id=2)
    stream.insert(id=4, item="d", note=None)
    apply(warehouse, destination, stream)
    assert warehouse.items() == {1: "A", 3: "item 3", 4: "d"}
    assert destination.applied(ORDERS.id) == warehouse.mark(stream.taken)
    assert warehouse.destination().applied(ORDERS.id) == warehouse.mark(stream.taken)
    assert warehouse.destination().applied(TableId(1)) is None
    assert warehouse.staged() == set()
