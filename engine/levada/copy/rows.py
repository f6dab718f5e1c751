"""The interface by which a destination reads the rows of a copy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from levada.schema import ReplicatedTableSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

T = TypeVar("T")


class TableRows(ABC):
    """All rows of one table in one snapshot. Each of the three methods may be called once."""

    schema: ReplicatedTableSchema

    @abstractmethod
    def map_partitions(self, fn: Callable[[pa.RecordBatchReader], T]) -> list[T]:
        """Run ``fn`` in one Spark task for each partition, and return the results.

        ``fn`` and its result are pickled, so the result should be small. Spark retries tasks, so ``fn`` may run more
        than once for a partition. Use only what ``fn`` wrote in the runs whose results are returned. A table without
        rows may have no partition.
        """

    @abstractmethod
    def to_spark(self) -> DataFrame:
        """Return the rows as a DataFrame, for destinations that write through Spark."""

    @abstractmethod
    def batches(self) -> pa.RecordBatchReader:
        """Return the rows as a reader in this process, one partition after another."""
