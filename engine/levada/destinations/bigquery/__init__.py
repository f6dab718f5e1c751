"""The BigQuery destination, which implements `levada.destinations.interface`.

Rows reach BigQuery through its Storage Write API, as Arrow in PENDING streams into a staging table. One multi-statement
transaction moves them into the served table and writes the watermark. This package needs no JVM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from levada.lazy import lazy_exports

if TYPE_CHECKING:
    from levada.destinations.bigquery.destination import BigQueryDestination

__all__ = ["BigQueryDestination"]

__getattr__ = lazy_exports(
    __name__,
    {
        "BigQueryDestination": "levada.destinations.bigquery.destination",
    },
)
