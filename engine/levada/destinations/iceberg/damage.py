"""The files of a table that are missing, or whose bytes have changed."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Final

from levada.copy.spark_tasks import SparkTasks
from levada.copy.tasks import run_tasks
from levada.destinations.data_files.intact import ReadFiles
from levada.destinations.data_files.listed_file import ListedFile
from levada.destinations.data_files.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from levada.destinations.data_files.deletion_vectors import DeletionVector

_FILES: Final = 8
_VECTORS: Final = 1000
"""The files, and the deletion vectors, that one task reads."""


def changed_files(
    spark: SparkSession, storage: Storage, files: list[ListedFile], vectors: list[DeletionVector], table: str
) -> list[str]:
    """Return the paths of the files that are missing or have other bytes than were written, by reading all of them.

    Raise Transient if the storage does not answer.
    """
    read = ReadFiles(storage)
    found = run_tasks(
        SparkTasks(spark),
        [
            *(partial(read, files[i : i + _FILES]) for i in range(0, len(files), _FILES)),
            *(partial(read, (), vectors[i : i + _VECTORS]) for i in range(0, len(vectors), _VECTORS)),
        ],
        f"damaged files of {table}",
        parallel=spark.sparkContext.defaultParallelism,
        cancelled=threading.Event(),
    )
    return list(dict.fromkeys(path for paths in found for path in paths))
