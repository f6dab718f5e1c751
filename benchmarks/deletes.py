"""Batches of 100,000 deletes in Iceberg tables of 1, 10 and 1,000 data files.

Compares position-delete files of format version 2, deletion vectors that this process writes, and deletion vectors of
Iceberg's own writer in the JVM, which gets the positions as arrays. Each batch is written and committed. Prints the
median CPU seconds of a batch, of Python and the JVM together. The later batches merge with the vectors of the earlier
ones, which Iceberg's writer is spared here. Usage::

    python -m benchmarks.deletes [--deletes 100000] [--batches 7]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from benchmarks.measure import Meter

from levada.destinations import DestinationContext
from levada.destinations.data_files.data_writer import DataWriter
from levada.destinations.data_files.deletion_vectors import DeletionVector
from levada.destinations.iceberg import IcebergDestination
from levada.destinations.iceberg.catalog import IcebergCatalog
from levada.destinations.iceberg.catalog_config import CatalogConfig, TableName
from levada.destinations.iceberg.settings import Settings
from levada.destinations.iceberg.table import IcebergTable
from levada.destinations.iceberg.vectors import finish, new_deletes
from levada.runtime.resources.spark import spark_session
from levada.schema import Kind
from levada.testing import column, table
from levada.values import Lsn, TableMode, Watermark

FILES = (1, 10, 1000)
ROWS = table(column(1, "id", Kind.INT8))


class Batch(NamedTuple):
    """Deleted rows: positions[i] of paths[files[i]]."""

    paths: Sequence[str]
    files: Any
    positions: Any


class Lake:
    """A catalog of new tables, in a folder."""

    def __init__(self, folder: Path) -> None:
        settings = Settings.model_validate({"catalog": {"type": "Hadoop", "warehouse": str(folder / "lake")}})
        conf, jars = IcebergDestination.spark_conf(settings), IcebergDestination.jars()
        spark = spark_session("deletes", cores=2, defaults=conf, jars=jars)
        self._config = CatalogConfig.of(settings, "deletes")
        self._context = DestinationContext("deletes", folder / "work", spark)

    def table(self, name: str, version: int, files: int, rows: int) -> tuple[IcebergTable, list[str]]:
        """Create a table of some data files. Return it with their paths."""
        catalog = IcebergCatalog(self._config, self._context, format_version=version)
        mark = Watermark("deletes", 1, Lsn(1))
        made, _ = catalog.create(TableName(("bench",), name), ROWS, TableMode.UPSERT, mark)
        schema, written = made.metadata.layout.files.arrow, []
        for number in range(files):
            with DataWriter(made.storage(), schema) as writer:
                writer.write(pa.table([np.arange(number * rows, (number + 1) * rows)], schema=schema))
            written += writer.files
        made.write(written, mark=mark)
        return made, [file.path for file in written]


def by_engine(made: IcebergTable) -> Callable[[Batch, int], None]:
    """Return a function that applies a batch as the engine does."""
    live: dict[str, DeletionVector] = {}

    def apply(batch: Batch, lsn: int) -> None:
        deletes = new_deletes(made.storage(), vectors=made.has_vectors)
        deletes.add(*batch)
        done = finish(deletes, live)
        made.write([], done, mark=Watermark("deletes", 1, Lsn(lsn)))
        live.update({v.data_file: v for v in done.vectors})

    return apply


def by_iceberg(made: IcebergTable) -> Callable[[Batch, int], None]:
    """Return a function that applies a batch by Iceberg's writer. It does not merge earlier vectors."""
    from pyspark import SparkContext

    jvm, gateway = SparkContext._active_spark_context._jvm, SparkContext._active_spark_context._gateway
    iceberg, java = jvm.org.apache.iceberg, jvm.java
    factory = iceberg.io.OutputFileFactory.builderFor(made.java, 1, 1).format(iceberg.FileFormat.PUFFIN).build()
    nothing = jvm.com.google.common.base.Functions.constant(None)
    live: list[Any] = []

    def apply(batch: Batch, lsn: int) -> None:
        writer = iceberg.deletes.BaseDVFileWriter(factory, nothing)
        order = np.argsort(batch.files, kind="stable")
        bounds = np.searchsorted(batch.files[order], np.arange(len(batch.paths) + 1))
        for path, begin, end in zip(batch.paths, bounds[:-1], bounds[1:], strict=True):
            rows = batch.positions[order[begin:end]]
            array = gateway.new_array(jvm.long, len(rows))
            java.nio.ByteBuffer.wrap(bytearray(rows.astype(">i8").tobytes())).asLongBuffer().get(array)
            boxed = java.util.stream.LongStream.of(array).boxed().toList()
            # py4j takes withNoopClose for its overload with a single element.
            rows_of_file = iceberg.io.CloseableIterable.combine(boxed, java.io.StringReader(""))
            index = iceberg.deletes.Deletes.toPositionIndex(rows_of_file)
            writer.delete(path, index, made.java.spec(), None)
        writer.close()
        made.java.refresh()
        update, current = made.java.newRowDelta(), made.java.currentSnapshot().snapshotId()
        vectors = list(writer.result().deleteFiles())
        for vector in vectors:
            update.addDeletes(vector)
        for vector in live:
            update.removeDeletes(vector)
        update.validateFromSnapshot(current).commit()
        live[:] = vectors

    return apply


def measured(apply: Callable[[Batch, int], None], paths: Sequence[str], rows: int, deletes: int, batches: int) -> str:
    """Return the median CPU seconds of the batches after the first, and those of the first."""
    random, spent = np.random.default_rng(1), []
    for lsn in range(2, batches + 2):
        picked = random.choice(len(paths) * rows, deletes, replace=False)
        batch = Batch(paths, picked // rows, picked % rows)
        with Meter() as meter:
            apply(batch, lsn)
        spent.append(meter.usage.cpu)
    return f"{statistics.median(spent[1:]):.2f} s CPU (first {spent[0]:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deletes", type=int, default=100_000)
    parser.add_argument("--batches", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        lake = Lake(Path(folder))
        for files in FILES:
            rows = max(10_000, 2_000_000 // files)
            for name, version, way in (
                ("position deletes", 2, by_engine),
                ("deletion vectors", 3, by_engine),
                ("Iceberg's writer", 3, by_iceberg),
            ):
                made, paths = lake.table(f"{name[0]}{files}".lower(), version, files, rows)
                shown = measured(way(made), paths, rows, options.deletes, options.batches)
                print(f"{files:5} files, {name}: {shown}", flush=True)


if __name__ == "__main__":
    main()
