"""The events of a stream as Python objects, for destinations and captures that need rows one by one."""

from levada.pgoutput.events import (
    Begin,
    Commit,
    Delete,
    Event,
    Full,
    Insert,
    Key,
    Partial,
    RelationEvent,
    Row,
    TruncateEvent,
    Unsupported,
    Update,
)

__all__ = [
    "Begin",
    "Commit",
    "Delete",
    "Event",
    "Full",
    "Insert",
    "Key",
    "Partial",
    "RelationEvent",
    "Row",
    "TruncateEvent",
    "Unsupported",
    "Update",
]
