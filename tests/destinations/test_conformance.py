"""The destinations of the project under the conformance suite."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from tests.destinations.conftest import Lake

from levada.destinations import Destination, DestinationContext
from levada.destinations.iceberg import IcebergDestination
from levada.destinations.iceberg.settings import Settings
from levada.locations import target_name
from levada.runtime.resources.spark import spark_session
from levada.schema import Column, Kind, TableTarget
from levada.schema.changes import OP
from levada.testing import DestinationConformance, DestinationPlace, MemoryDestination, MemoryTables, fold_changelog


class TestMemory(DestinationConformance):
    """The destination in memory."""

    @pytest.fixture
    def place(self) -> DestinationPlace:
        """Return a place that outlives the destination's objects."""
        tables = MemoryTables()
        return DestinationPlace(open=lambda: MemoryDestination(tables), read=tables.read)


class TestIceberg(DestinationConformance):
    """The Iceberg destination in a Hadoop catalog, read by PyIceberg and by Spark."""

    @pytest.fixture
    def place(self, hadoop: Lake) -> DestinationPlace:
        """Return a lake in a folder."""

        def read(target: TableTarget) -> Iterable[dict[str, Any]]:
            rows = hadoop.rows(target_name(target.name.name))
            return fold_changelog(target.schema, rows) if rows and OP in rows[0] else rows

        in_child = partial(_open_in_child, hadoop.manifest, replace(hadoop.context, spark=None))
        return DestinationPlace(open=hadoop.destination, read=read, shown=_times_are_text, in_child=in_child)


def _times_are_text(column: Column, value: Any) -> Any:
    return value.isoformat(timespec="microseconds") if column.type.kind is Kind.TIME else value


def _open_in_child(manifest: dict[str, Any], context: DestinationContext) -> Destination:
    session = spark_session("conformance", cores=1)
    settings = Settings.model_validate(manifest)
    return IcebergDestination.from_settings(settings, replace(context, spark=session))
