"""The destination interface, and one module or package for each destination.

A destination writes rows and changes, and reports up to which LSN its tables are durable. `levada.runtime` decides when
to call it, and in which phase of a table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from levada.lazy import lazy_exports

if TYPE_CHECKING:
    from levada.destinations.interface import (
        Capabilities,
        Destination,
        DestinationContext,
        Jar,
        OnSchemaChange,
        Ordering,
        TableMode,
        TableTarget,
    )

__all__ = [
    "Capabilities",
    "Destination",
    "DestinationContext",
    "Jar",
    "OnSchemaChange",
    "Ordering",
    "TableMode",
    "TableTarget",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "Capabilities": "levada.destinations.interface",
        "Destination": "levada.destinations.interface",
        "DestinationContext": "levada.destinations.interface",
        "Jar": "levada.local.jars",
        "OnSchemaChange": "levada.destinations.interface",
        "Ordering": "levada.destinations.interface",
        "TableMode": "levada.destinations.interface",
        "TableTarget": "levada.destinations.interface",
    },
)
