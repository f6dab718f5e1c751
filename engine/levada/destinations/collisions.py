"""Tables of the source that would have the same table at the destination. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from levada.errors import NeedsOperator
from levada.values import QualifiedTable, TableId


@dataclass(frozen=True, slots=True)
class Target:
    """A table's name at the destination; two with the same ``identity`` are one table there."""

    name: str
    identity: str


@dataclass(frozen=True, slots=True)
class Collision:
    """Tables of the source with one table at the destination."""

    target: str
    tables: tuple[QualifiedTable, ...]

    def error(self) -> NeedsOperator:
        """Return the error that names them all."""
        *most, last = map(str, self.tables)
        return NeedsOperator(
            "destination_collision",
            f"tables {', '.join(most)} and {last} have the same table at the destination: {self.target}",
            hint=f"give {last} a name of its own: set destinationTable in its TableSync,"
            " or use {schema} in spec.destination.iceberg.namespace",
        )


@dataclass(frozen=True, slots=True)
class Place:
    """A table, the target that its copy needs, and the one that it holds already."""

    id: TableId
    table: QualifiedTable
    wanted: Target
    held: Target | None = None


def find_later(places: Iterable[Place]) -> dict[TableId, Place]:
    """Return the tables that must not be copied, each with the table that has its target.

    A table that holds a target keeps it. Of tables that do not, the one with the lowest OID has it.
    """
    ranked = sorted(places, key=lambda p: p.id)
    owners: dict[str, Place] = {}
    for place in ranked:
        if place.held is not None:
            owners.setdefault(place.held.identity, place)
    for place in ranked:
        owners.setdefault(place.wanted.identity, place)
    return {p.id: owner for p in ranked if (owner := owners[p.wanted.identity]).id != p.id}
