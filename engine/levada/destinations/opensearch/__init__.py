"""The OpenSearch destination, which implements `levada.destinations.interface`.

A table is an index with one document per row, behind an alias that readers use. A copy, a truncate and a change of the
columns write the next generation of the index, and then move the alias. Rows become JSON column by column. No module of
this package makes a Python object per row, except for rows with a value that only the index has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from levada.lazy import lazy_exports, lazy_names

if TYPE_CHECKING:
    from levada.destinations.opensearch.destination import OpenSearchDestination

__all__ = ["OpenSearchDestination"]

_LAZY_EXPORTS = {"OpenSearchDestination": "levada.destinations.opensearch.destination"}

__getattr__, __dir__ = lazy_exports(__name__, _LAZY_EXPORTS), lazy_names(__name__, _LAZY_EXPORTS)
