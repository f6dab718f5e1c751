"""The interface by which a destination reads the rows of a copy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import pyarrow as pa

from levada.schema import ReplicatedTableSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FinishedRange(Generic[T]):
    """The result ``value`` of one range, the number of its rows, and of its values that became NULL."""

    value: T
    rows: int
    unrepresentable: int


class RangeKeeper(Protocol[T]):
    """Keeps the results of finished ranges at the destination, so that they outlive the process.

    It is pickled into the tasks. ``place`` identifies where the results are, for example a folder. What an earlier copy
    of the table has kept is used only if its place was the same.
    """

    @property
    def place(self) -> str:
        """The place of the results."""
        ...

    def save(self, name: str, finished: FinishedRange[T]) -> None:
        """Keep the result of a range durably, in the task's process. Replace an earlier one of the same name."""
        ...

    def load(self, name: str) -> FinishedRange[T]:
        """Return a kept result. Raise LevadaError if it cannot be read."""
        ...

    def remove(self, names: Sequence[str]) -> None:
        """Remove kept results, which were committed. Failures are ignored."""
        ...


@dataclass(frozen=True, slots=True)
class CopiedRows(Generic[T]):
    """The results of a copy whose ranges may have been read in several snapshots.

    ``snapshots`` has the results of the ranges, by snapshot in the order of their LSNs. The rows of one snapshot have
    distinct keys. ``changed_keys`` are the keys of all rows that changed between the first and the last snapshot, as a
    table of the key columns, without duplicates. Delete every row with such a key in ``snapshots``. ``changed`` has the
    results for the rows that have these keys in the last snapshot. ``changed_keys`` is None if there is one snapshot.
    ``names`` are the names of the results that the keeper still has.
    """

    snapshots: tuple[tuple[T, ...], ...]
    changed_keys: pa.Table | None = None
    changed: tuple[T, ...] = ()
    names: tuple[str, ...] = ()


class TableRows(ABC):
    """All rows of one table in one snapshot. Only one of the four methods that read them may be called, and once."""

    schema: ReplicatedTableSchema
    kept_place: str | None = None
    """The place of the finished ranges that a copy of this table has kept, None if there are none."""

    @abstractmethod
    def map_partitions(self, fn: Callable[[pa.RecordBatchReader], T]) -> list[T]:
        """Run ``fn`` for each partition, and return the results.

        It runs in another process, or in this one for a small table and a destination with the capability
        ``copies_in_process``. The processes are Spark's for a destination with the capability ``spark``, and workers of
        this machine for any other. ``fn`` and its result
        are pickled, closures and classes of `__main__` included, so the result should be small. Tasks are retried, so
        ``fn`` may run more than once for a partition. Use only what ``fn`` wrote in the runs whose results are
        returned. A table without rows may have no partition.
        """

    def map_ranges(self, fn: Callable[[pa.RecordBatchReader], T], keeper: RangeKeeper[T]) -> CopiedRows[T]:
        """Run ``fn`` as `map_partitions` does, and keep the results, so that an interrupted copy is resumed.

        For a table with a key and a destination with the capability ``keeps_ranges``, ranges that an earlier attempt
        has finished are not read again. After an error, keep the files of the ranges if `kept_place` is the keeper's
        place, because the next attempt uses them.
        """
        return CopiedRows((tuple(self.map_partitions(fn)),))

    @abstractmethod
    def to_spark(self) -> DataFrame:
        """Return the rows as a DataFrame, for destinations that write through Spark.

        Raise NeedsOperator ``spark_not_requested`` for a destination without the capability ``spark``.
        """

    @abstractmethod
    def batches(self) -> pa.RecordBatchReader:
        """Return the rows as a reader in this process, one partition after another."""
