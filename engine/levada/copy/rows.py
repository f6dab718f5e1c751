"""The rows of a copy, as a destination sees them."""

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
    """All rows of one table as of one snapshot; each of the three ways of reading them may be used once."""

    schema: ReplicatedTableSchema

    @abstractmethod
    def map_partitions(self, fn: Callable[[pa.RecordBatchReader], T]) -> list[T]:
        """Run ``fn`` over each partition as one Spark task and return the results.

        ``fn`` and its result are pickled, the result should be small. A task may run twice (Spark retries it): what
        ``fn`` wrote counts only if its result is returned. Without rows there may be no partition at all.
        """

    @abstractmethod
    def to_spark(self) -> DataFrame:
        """Return the rows as a DataFrame, for destinations that write through Spark."""

    @abstractmethod
    def batches(self) -> pa.RecordBatchReader:
        """Return the rows as a reader in this process, one partition after another."""
