"""Where tables go: the interface, and one module or package for each destination.

A destination writes what it is handed and tells what it durably holds. When it is called, and in which phase, is
`levada.runtime`'s work.
"""

from levada.destinations.interface import (
    Capabilities,
    Destination,
    DestinationContext,
    OnSchemaChange,
    Ordering,
    TableMode,
    TableSettings,
)

__all__ = [
    "Capabilities",
    "Destination",
    "DestinationContext",
    "OnSchemaChange",
    "Ordering",
    "TableMode",
    "TableSettings",
]
