"""Detects source tables that would be written to the same destination table. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from levada.errors import NeedsOperator
from levada.values import QualifiedTable, TableId


@dataclass(frozen=True, slots=True)
class TargetName:
    """A table's name at the destination. Two names with the same ``identity`` refer to the same table."""

    name: str
    identity: str


@dataclass(frozen=True, slots=True)
class Collision:
    """Several source tables with the same destination table."""

    target: str
    tables: tuple[QualifiedTable, ...]

    def error(self) -> NeedsOperator:
        """Return the error, which lists all the tables."""
        *most, last = map(str, self.tables)
        return NeedsOperator(
            "destination_collision",
            f"tables {', '.join(most)} and {last} have the same table at the destination: {self.target}",
            hint=f"give {last} another name: set destinationTable in its TableSync,"
            " or name the tables by their schema in spec.destination, where {schema} stands for it",
        )


@dataclass(frozen=True, slots=True)
class Place:
    """A table, the target that its copy needs, and the target that it has already, if any."""

    id: TableId
    table: QualifiedTable
    wanted: TargetName
    held: TargetName | None = None


def find_later(places: Iterable[Place]) -> dict[TableId, Place]:
    """Return the tables that must not be copied, each with the table that owns its target.

    A table that already has a target owns it. Among the other tables, the one with the lowest OID owns it.
    """
    ranked = sorted(places, key=lambda p: p.id)
    owners: dict[str, Place] = {}
    for place in ranked:
        if place.held is not None:
            owners.setdefault(place.held.identity, place)
    for place in ranked:
        owners.setdefault(place.wanted.identity, place)
    return {p.id: owner for p in ranked if (owner := owners[p.wanted.identity]).id != p.id}
