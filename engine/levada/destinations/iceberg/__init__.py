"""The Iceberg destination, which implements `levada.destinations.interface`.

pyarrow writes the data files and position-delete files, in Spark tasks or in this process. Commits go through Iceberg's
Java API in Spark's JVM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from levada.lazy import lazy_exports

if TYPE_CHECKING:
    from levada.destinations.iceberg.destination import IcebergDestination

__all__ = ["IcebergDestination"]

__getattr__ = lazy_exports(
    __name__,
    {
        "IcebergDestination": "levada.destinations.iceberg.destination",
    },
)
