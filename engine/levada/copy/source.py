"""A Spark data source of a copy's rows. It passes Arrow batches to Spark without pandas."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from levada.copy.plan import BlockRange
from levada.copy.range_reader import RangeReader

_numbers: Final = itertools.count(1)


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


def _source(source_name: str, rows: RangeReader, shares: list[_Share]) -> type[DataSource]:
    """Return a data source of these rows. Spark pickles the class with them.

    They are no option of the data source, because Spark shows options in query plans, and a connection may have a
    password.
    """

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return source_name

        def schema(self) -> StructType:
            return from_arrow_schema(rows.schema.arrow)

        def reader(self, schema: StructType) -> DataSourceReader:
            return _Reader(rows, shares)

    return Source


def read_ranges(spark: SparkSession, reader: RangeReader, ranges: tuple[BlockRange, ...], tasks: int) -> DataFrame:
    """Return the rows of the ranges as a DataFrame of at most ``tasks`` partitions."""
    shares = [_Share(ranges[i::tasks]) for i in range(min(tasks, len(ranges)))]
    # A name of its own, because several copies may run in one session.
    name = f"levada-copy-{next(_numbers)}"
    spark.dataSource.register(_source(name, reader, shares))
    return spark.read.format(name).load()
