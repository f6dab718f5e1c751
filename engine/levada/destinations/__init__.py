"""The destination interface, and one module or package for each destination.

A destination writes rows and changes, and reports up to which LSN its tables are durable. `levada.runtime` decides when
to call it, and in which phase of a table.
"""

from levada.destinations.interface import (
    Capabilities,
    Destination,
    DestinationContext,
    OnSchemaChange,
    Ordering,
    TableMode,
    TableTarget,
)

__all__ = [
    "Capabilities",
    "Destination",
    "DestinationContext",
    "OnSchemaChange",
    "Ordering",
    "TableMode",
    "TableTarget",
]
