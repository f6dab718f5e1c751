"""The process from which Spark forks its Python workers, with the modules of Levada's tasks already imported.

Spark starts it instead of ``pyspark.daemon`` (``spark.python.daemon.module``). A worker then starts in milliseconds and
shares the memory of these modules. Otherwise each worker would spend seconds of CPU on the imports, again after each
idle minute.
"""

from __future__ import annotations

import gc

import pyarrow.parquet
import pyiceberg.io.pyarrow
from pyspark import daemon

import levada.copy.snapshot
import levada.destinations.data_files.data_writer
import levada.destinations.iceberg.storage

__all__ = ["levada", "pyarrow", "pyiceberg"]

if __name__ == "__main__":
    # Keeps the garbage collection of the workers from visiting these modules, which would copy their memory pages.
    gc.freeze()
    daemon.manager()  # type: ignore[no-untyped-call]  # as pyspark has it
