"""The process from which Spark forks its Python workers, with the modules that write Iceberg's data files."""

from __future__ import annotations

import pyarrow.parquet
import pyiceberg.io.pyarrow

import levada.destinations.data_files.data_writer
import levada.destinations.data_files.parallel_changelog
import levada.destinations.data_files.parallel_upsert
import levada.destinations.iceberg.storage
import levada.segments.staged
from levada.copy.spark_daemon import main

__all__ = ["levada", "pyarrow", "pyiceberg"]

if __name__ == "__main__":
    main()
