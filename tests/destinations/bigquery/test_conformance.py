"""The conformance suite on BigQuery's emulator."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from tests.destinations.bigquery.warehouse import Warehouse

from levada.destinations import DestinationContext
from levada.destinations.bigquery import BigQueryDestination
from levada.destinations.bigquery.settings import Settings
from levada.schema import Column, Kind
from levada.testing import DestinationConformance, DestinationPlace
from levada.testing.destinations.changes import Changes
from levada.testing.destinations.schema_changes import SchemaChanges
from levada.testing.destinations.values import Values
from levada.testing.destinations.watermarks import Watermarks


@dataclass(frozen=True)
class InChild:
    """Opens the destination in another process."""

    manifest: dict[str, Any]
    context: DestinationContext

    def __call__(self) -> BigQueryDestination:
        return BigQueryDestination.from_settings(Settings.model_validate(self.manifest), self.context)


def shown(column: Column, value: Any) -> Any:
    """Return a value as `read_back` has it: arrays, ranges and maps are JSON."""
    if column.type.kind is Kind.MAP:
        return dict(value)
    return value if column.type.element is None else _element(value)


def _element(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _element(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_element(e) for e in value]
    if isinstance(value, dt.datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S.%f+00")
    return value.isoformat() if isinstance(value, dt.date) else value


class TestConformance(DestinationConformance):
    """The conformance suite, read back by BigQuery's own client. The emulator is slow, so a part runs nightly."""

    parts_of_each_run: ClassVar[tuple[type | str, ...]] = (Changes, SchemaChanges, Values, Watermarks)

    @pytest.fixture
    def place(self, warehouse: Warehouse) -> DestinationPlace:
        """Return datasets without tables."""
        return DestinationPlace(
            open=lambda: InChild(warehouse.manifest, warehouse.context)(),
            read=warehouse.read_back,
            shown=shown,
            in_child=InChild(warehouse.manifest, warehouse.context),
        )
