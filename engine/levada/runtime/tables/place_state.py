"""The place of one table at the destination."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class PlaceState:
    """The place of one table at the destination, and how the table is kept there. Only `PlaceCheck` assigns it."""

    name: str = ""
    """The table's name at the destination, empty if it has none there."""
    misplaced: bool = False
    """True if the table is parked because it has no usable place of its own."""
    follows: bool = False
    """True until the table's copy to the place that its name has, which was that of another table."""
    mode: str = ""
    note: str = ""
    """The reason for the mode, if it is not the configured one."""
