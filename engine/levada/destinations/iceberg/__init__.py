"""The Iceberg destination, which implements `levada.destinations.interface`.

pyarrow writes the data files and position-delete files, in Spark tasks or in this process. Commits go through Iceberg's
Java API in Spark's JVM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from levada.lazy import lazy_exports, lazy_names

if TYPE_CHECKING:
    from levada.destinations.iceberg.destination import IcebergDestination

__all__ = ["IcebergDestination"]

_LAZY_EXPORTS = {
    "IcebergDestination": "levada.destinations.iceberg.destination",
}

__getattr__, __dir__ = lazy_exports(__name__, _LAZY_EXPORTS), lazy_names(__name__, _LAZY_EXPORTS)
