"""The names of tables at the destination. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final, Self

from psycopg import sql

from levada.destinations.collisions import TargetName
from levada.destinations.postgres.settings import Settings
from levada.errors import NeedsOperator
from levada.values import QualifiedTable

_NAME_BYTES: Final = 63
"""NAMEDATALEN - 1: PostgreSQL truncates longer names, so that two of them may become one."""
_OWN: Final = "_levada_"


@dataclass(frozen=True, slots=True)
class Naming:
    """The template of schema names, and the schema of Levada's own tables."""

    template: str
    state_schema: str

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """Return the rules of a destination's settings."""
        return cls(settings.schema_name, settings.state_schema)

    def place(self, source: QualifiedTable, name: QualifiedTable) -> QualifiedTable:
        """Return the table's schema and name at the destination.

        ``source`` is the source table, and ``name`` is `TableTarget.name`. Raise NeedsOperator
        ``destination_name_unusable``.
        """
        place = QualifiedTable(self.template.replace("{schema}", name.schema), name.name)
        for part in (place.schema, place.name):
            if len(part.encode()) > _NAME_BYTES:
                raise _unusable(source, place, f"{part} has more than {_NAME_BYTES} bytes")
            if not part or "\0" in part:
                raise _unusable(source, place, "a name is empty or has a NUL character")
        if place.schema.startswith("pg_") or place.schema in ("information_schema", self.state_schema):
            raise _unusable(source, place, f"the schema {place.schema} is not for tables of users")
        if place.name.startswith(_OWN):
            raise _unusable(source, place, f"names that begin with {_OWN} are Levada's own")
        return place

    def target_name(self, source: QualifiedTable, name: QualifiedTable) -> TargetName:
        """Return that name in the form that other layers compare."""
        place = self.place(source, name)
        return TargetName(str(place), json.dumps([place.schema, place.name]))


def identifier(place: QualifiedTable) -> sql.Identifier:
    """Return the quoted name for SQL."""
    return sql.Identifier(place.schema, place.name)


def _unusable(source: QualifiedTable, place: QualifiedTable, why: str) -> NeedsOperator:
    return NeedsOperator(
        "destination_name_unusable",
        f"{source} cannot be the table {place} at the destination: {why}",
        hint="set destinationTable in the table's TableSync, or another schema in the destination's settings",
    )
