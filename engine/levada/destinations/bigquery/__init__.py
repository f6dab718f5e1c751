"""The BigQuery destination, which implements `levada.destinations.interface`.

Rows reach BigQuery through its Storage Write API, as Arrow in PENDING streams into a staging table. One multi-statement
transaction moves them into the served table and writes the watermark. This package needs no JVM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from levada.lazy import lazy_exports, lazy_names

if TYPE_CHECKING:
    from levada.destinations.bigquery.destination import BigQueryDestination

__all__ = ["BigQueryDestination"]

_LAZY_EXPORTS = {
    "BigQueryDestination": "levada.destinations.bigquery.destination",
}

__getattr__, __dir__ = lazy_exports(__name__, _LAZY_EXPORTS), lazy_names(__name__, _LAZY_EXPORTS)
