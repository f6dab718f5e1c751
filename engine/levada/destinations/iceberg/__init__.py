"""The Iceberg destination, which implements `levada.destinations.interface`.

pyarrow writes the data files and position-delete files, in Spark tasks or in this process. Commits go through Iceberg's
Java API in Spark's JVM.
"""

from levada.destinations.iceberg.destination import IcebergDestination

__all__ = ["IcebergDestination"]
