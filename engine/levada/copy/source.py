"""A Spark data source of a copy's rows. It passes Arrow batches to Spark without pandas."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from levada.copy.plan import BlockRange
from levada.copy.range_reader import RangeReader

_NAME = "levada-copy"


@dataclass
class _Share(InputPartition):
    """The ranges of one task."""

    ranges: tuple[BlockRange, ...]


class _Reader(DataSourceReader):
    def __init__(self, reader: RangeReader, shares: list[_Share]) -> None:
        self._reader = reader
        self._shares = shares

    def partitions(self) -> list[_Share]:
        return self._shares

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Share)
        for part in partition.ranges:
            yield from self._reader.batches(part)


class _Source(DataSource):
    @classmethod
    def name(cls) -> str:
        return _NAME

    def _rows(self) -> tuple[RangeReader, list[_Share]]:
        rows: tuple[RangeReader, list[_Share]] = pickle.loads(base64.b64decode(self.options["rows"]))
        return rows

    def schema(self) -> StructType:
        return from_arrow_schema(self._rows()[0].schema.arrow)

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(*self._rows())


def read_ranges(spark: SparkSession, reader: RangeReader, ranges: tuple[BlockRange, ...], tasks: int) -> DataFrame:
    """Return the rows of the ranges as a DataFrame of at most ``tasks`` partitions."""
    shares = [_Share(ranges[i::tasks]) for i in range(min(tasks, len(ranges)))]
    spark.dataSource.register(_Source)
    # Options must be text, and Spark shows them in query plans. This one has no secret.
    rows = base64.b64encode(pickle.dumps((reader, shares))).decode()
    return spark.read.format(_NAME).option("rows", rows).load()
