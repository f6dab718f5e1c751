"""Tables in an Iceberg catalog.

Data and position-delete files are written by pyarrow, in Spark tasks or in this process; commits go through Iceberg's
Java API in Spark's JVM. What is asked of a destination is in `levada.destinations.interface`.
"""

from levada.destinations.iceberg.destination import IcebergDestination

__all__ = ["IcebergDestination"]
