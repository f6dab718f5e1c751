"""The destination interface, and one module or package for each destination.

A destination writes rows and changes, and reports up to which LSN its tables are durable. `levada.runtime` decides when
to call it, and in which phase of a table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from levada.lazy import lazy_exports, lazy_names

if TYPE_CHECKING:
    from levada.copy.rows import TableRows
    from levada.destinations.collisions import TargetName
    from levada.destinations.context import DestinationContext, Source
    from levada.destinations.erasure import Erased, Erasure, Remaining
    from levada.destinations.interface import (
        Capabilities,
        Destination,
        Jar,
        NamedCut,
        OnSchemaChange,
        Ordering,
        TableMode,
        TableTarget,
    )
    from levada.segments.batch import EventBatch, TableEvents
    from levada.values import Durability, Watermark

__all__ = [
    "Capabilities",
    "Destination",
    "DestinationContext",
    "Durability",
    "Erased",
    "Erasure",
    "EventBatch",
    "Jar",
    "NamedCut",
    "OnSchemaChange",
    "Ordering",
    "Remaining",
    "Source",
    "TableEvents",
    "TableMode",
    "TableRows",
    "TableTarget",
    "TargetName",
    "Watermark",
]

_LAZY_EXPORTS = {
    "Capabilities": "levada.destinations.interface",
    "Destination": "levada.destinations.interface",
    "DestinationContext": "levada.destinations.context",
    "Durability": "levada.values",
    "Erased": "levada.destinations.erasure",
    "Erasure": "levada.destinations.erasure",
    "EventBatch": "levada.segments.batch",
    "Jar": "levada.local.jars",
    "NamedCut": "levada.destinations.interface",
    "OnSchemaChange": "levada.destinations.interface",
    "Ordering": "levada.destinations.interface",
    "Remaining": "levada.destinations.erasure",
    "Source": "levada.destinations.context",
    "TableEvents": "levada.segments.batch",
    "TableMode": "levada.destinations.interface",
    "TableRows": "levada.copy.rows",
    "TableTarget": "levada.destinations.interface",
    "TargetName": "levada.destinations.collisions",
    "Watermark": "levada.values",
}

__getattr__, __dir__ = lazy_exports(__name__, _LAZY_EXPORTS), lazy_names(__name__, _LAZY_EXPORTS)
