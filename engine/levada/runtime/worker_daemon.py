"""The process that Spark's Python workers are forked from, with what our tasks import already loaded.

Spark starts it in place of ``pyspark.daemon`` (``spark.python.daemon.module``). A worker then begins in milliseconds,
and shares the memory of these modules, where it would import them for 2 seconds of CPU.
"""

from __future__ import annotations

import psycopg
import pyarrow.compute
import pyarrow.parquet
from pyspark import daemon

__all__ = ["psycopg", "pyarrow"]

if __name__ == "__main__":
    daemon.manager()  # type: ignore[no-untyped-call]  # as pyspark has it
