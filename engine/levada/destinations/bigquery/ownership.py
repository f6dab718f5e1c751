"""The owner of a table of BigQuery: a pipeline, by its full name, its source database, and one source table.

A served table has a label with the name of its state's table. That name has the OID of the source table and a digest of
the owner, and the state has the owner in full.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from levada.destinations.bigquery.names import TableName
from levada.destinations.bigquery.state import Description
from levada.destinations.interface import DestinationContext
from levada.destinations.ownership import collision
from levada.errors import DestinationChanged
from levada.schema import ReplicatedTableSchema
from levada.values import QualifiedTable, TableId

_log = logging.getLogger(__name__)

LABEL: Final = "levada_state"
MADE: Final = "levada_made"
"""The label with the mark of a table's creation, see `levada.destinations.bigquery.state.Description`."""
_STATE: Final = re.compile(r"state_(\d+)_([0-9a-f]{16})")

ReadDescription = Callable[[str], Description | None]
"""Reads the description in the state's table of this name. Returns None if there is none."""


@dataclass(frozen=True, slots=True)
class Owner:
    """A pipeline with its source. The pipeline also owns the tables of its former owners."""

    context: DestinationContext

    @property
    def source_id(self) -> str:
        """The identity of the source, or an empty text."""
        return "" if self.context.source is None else str(self.context.source)

    def state_name(self, table: TableId) -> str:
        """Return the name of the table with the state of a source table."""
        return f"state_{int(table)}_{self._digest(self.context.full_name)}"

    def former_state_names(self, table: TableId) -> Iterator[str]:
        """Yield the names under which a former owner may have stored the state."""
        for name in self.context.former_names():
            yield f"state_{int(table)}_{self._digest(name)}"

    def require(
        self,
        name: TableName,
        resource: Mapping[str, Any],
        table: TableId,
        read: ReadDescription,
        wanted: QualifiedTable | None = None,
    ) -> None:
        """Raise DestinationChanged unless this owner owns the table, and it is the one of the source table.

        The code is ``table_not_ours`` for a table of another owner, and ``destination_collision`` for that of another
        source table. ``resource`` is the table's resource in BigQuery. ``wanted`` is the source table's name, if known.
        """
        found = _STATE.fullmatch(label(resource))
        if found is None or not self._is_ours(found[2]):
            raise DestinationChanged(
                "table_not_ours",
                f"{name} exists and {self._owner(label(resource), read)}",
                hint="set destinationTable in the table's TableSync, or move the existing table away",
            )
        if int(found[1]) != table:
            former, otherwise = read(label(resource)), f"or drop {name} in BigQuery"
            copied_as = None if former is None else former.source
            owner = TableId(int(found[1]))
            raise collision(name, owner, copied_as, self.context.source, table, wanted, otherwise=otherwise)

    def require_replaceable(
        self, name: TableName, resource: Mapping[str, Any], schema: ReplicatedTableSchema, read: ReadDescription
    ) -> None:
        """Raise DestinationChanged as `require` does, unless a copy of the source table may replace the table.

        It may replace the table of a dropped source table of the same name, and any table of a former source.
        """
        if not self._may_replace(name, label(resource), schema, read):
            self.require(name, resource, schema.id, read, schema.name)

    def _may_replace(self, name: TableName, state: str, schema: ReplicatedTableSchema, read: ReadDescription) -> bool:
        source, found = self.context.source, _STATE.fullmatch(state)
        if source is None or found is None or state == self.state_name(schema.id):
            return False
        former = read(state)
        if former is None or not self._has_our_name(former):
            return False
        if former.source_id != self.source_id:
            if not source.is_former(former.source_id):
                return False
            _log.warning("%s is a table of the former source of pipeline %s", name, self.context.full_name)
            return True
        if former.table == schema.id or former.source != schema.name or source.has_table(former.table):
            return False
        _log.warning("%s is the table of an earlier %s (OID %d), which was dropped", name, schema.name, former.table)
        return True

    def _has_our_name(self, description: Description) -> bool:
        named = description.pipeline
        return named == self.context.full_name or named in self.context.former_names()

    def _is_ours(self, digest: str) -> bool:
        if digest == self._digest(self.context.full_name):
            return True
        # Check the former names last, because reading them needs the store.
        return any(digest == self._digest(name) for name in self.context.former_names())

    def _digest(self, name: str) -> str:
        return hashlib.sha256(f"{name}\0{self.source_id}".encode()).hexdigest()[:16]

    def _owner(self, state: str, read: ReadDescription) -> str:
        if not state:
            return "was not created by Levada"
        found = read(state) if _STATE.fullmatch(state) else None
        if found is None:
            return "belongs to another Pipeline"
        if found.pipeline != self.context.full_name:
            return f"belongs to Pipeline {found.pipeline}, but this is Pipeline {self.context.full_name}"
        return f"belongs to another Pipeline {found.pipeline} with another source database"


def label(resource: Mapping[str, Any], name: str = LABEL) -> str:
    """Return a label of a table, by default the one that names its state, or an empty text."""
    return str((resource.get("labels") or {}).get(name, ""))
