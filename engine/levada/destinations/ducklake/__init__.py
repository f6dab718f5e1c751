"""DuckLake tables: Parquet files in a folder or object store, and a catalog of them in PostgreSQL.

The catalog is written by DuckLake's specification. No DuckDB runs here. `levada.destinations.data_files` writes the
files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from levada.lazy import lazy_exports, lazy_names

if TYPE_CHECKING:
    from levada.destinations.ducklake.destination import DuckLakeDestination

__all__ = ["DuckLakeDestination"]

_LAZY_EXPORTS = {
    "DuckLakeDestination": "levada.destinations.ducklake.destination",
}

__getattr__, __dir__ = lazy_exports(__name__, _LAZY_EXPORTS), lazy_names(__name__, _LAZY_EXPORTS)
