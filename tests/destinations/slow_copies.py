"""Copies that end when a test lets them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pyarrow as pa
from tests.destinations.memory import MemoryRows
from tests.rigs.lake import Lake

from levada.destinations.iceberg import IcebergDestination
from levada.schema import ReplicatedTableSchema, TableTarget

T = TypeVar("T")


CLAIM = "levada.copy"


class SlowRows(MemoryRows):
    """A copy during which something happens: ``meanwhile`` is called between two partitions."""

    def __init__(
        self, schema: ReplicatedTableSchema, meanwhile: Callable[[], None], *parts: list[dict[str, Any]]
    ) -> None:
        super().__init__(schema, *parts)
        self._meanwhile = meanwhile

    def map_partitions(self, fn: Callable[[pa.RecordBatchReader], T]) -> list[T]:
        done = super().map_partitions(fn)
        self._meanwhile()
        return done


def rows(n: int) -> list[dict[str, Any]]:
    """Return rows 1 to n as a new copy reads them."""
    return [{"id": i, "item": f"copied {i}", "note": "y" * 100} for i in range(1, n + 1)]


def begin(
    lake: Lake,
    destination: IcebergDestination,
    target: ReplicatedTableSchema | TableTarget,
    lsn: int,
    n: int = 3,
    epoch: int = 1,
) -> bool:
    """Make a shadow copy of rows 1 to n, as of an LSN."""
    target = target if isinstance(target, TableTarget) else TableTarget.of(target)
    return destination.copy_replacement(target, MemoryRows(target.schema, rows(n)), lake.mark(lsn, epoch))
