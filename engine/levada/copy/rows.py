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
        """Run ``fn`` in another process for each partition, and return the results.

        The processes are Spark's for a destination with the capability ``spark``, and workers of this machine for any
        other. ``fn`` and its result are pickled, closures and classes of `__main__` included, so the result should be
        small. Tasks are retried, so ``fn`` may run more than once for a partition. Use only what ``fn`` wrote in the
        runs whose results are returned. A table without rows may have no partition.
        """

    @abstractmethod
    def to_spark(self) -> DataFrame:
        """Return the rows as a DataFrame, for destinations that write through Spark.

        Raise NeedsOperator ``spark_not_requested`` for a destination without the capability ``spark``.
        """

    @abstractmethod
    def batches(self) -> pa.RecordBatchReader:
        """Return the rows as a reader in this process, one partition after another."""
