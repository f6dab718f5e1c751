"""The process that Spark's Python workers are forked from, with what our tasks import already loaded.

Spark starts it in place of ``pyspark.daemon`` (``spark.python.daemon.module``). A worker then begins in milliseconds,
and shares the memory of these modules, where it would import them for seconds of CPU, again after each idle minute.
"""

from __future__ import annotations

import gc

import pyarrow.parquet
import pyiceberg.io.pyarrow
from pyspark import daemon

import levada.copy.snapshot
import levada.destinations.iceberg.files

__all__ = ["levada", "pyarrow", "pyiceberg"]

if __name__ == "__main__":
    # The workers' collections need not walk what was loaded here, nor copy its pages by doing so.
    gc.freeze()
    daemon.manager()  # type: ignore[no-untyped-call]  # as pyspark has it
