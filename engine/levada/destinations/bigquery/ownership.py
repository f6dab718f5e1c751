"""The owner of a table of BigQuery: a pipeline, by its full name, its source database, and one source table.

A served table has a label with the name of its state's table. That name has the OID of the source table and a digest of
the owner, and the state has the owner in full.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from levada.destinations.bigquery.names import TableName
from levada.destinations.bigquery.state import Description
from levada.destinations.ownership import UNKNOWN, Owner, TableOwner, not_ours
from levada.schema import ReplicatedTableSchema
from levada.values import TableId

LABEL: Final = "levada_state"
MADE: Final = "levada_made"
"""The label with the mark of a table's creation, see `levada.destinations.bigquery.state.Description`."""
_STATE: Final = re.compile(r"state_(\d+)_([0-9a-f]{16})")

ReadDescription = Callable[[str], Description | None]
"""Reads the description in the state's table of this name. Returns None if there is none."""


@dataclass(frozen=True, slots=True)
class RecordedOwner:
    """The rules of `Owner` over the labels of tables. ``read`` is asked only about tables of others."""

    owner: Owner
    read: ReadDescription

    def state_name(self, table: TableId) -> str:
        """Return the name of the table with the state of a source table."""
        return f"state_{int(table)}_{self._digest(self.owner.context.full_name)}"

    def former_state_names(self, table: TableId) -> Iterator[str]:
        """Yield the names under which a former owner may have stored the state."""
        for name in self.owner.context.former_names():
            yield f"state_{int(table)}_{self._digest(name)}"

    def require(self, name: TableName, resource: Mapping[str, Any], table: TableId) -> None:
        """Raise DestinationChanged unless the table with this resource in BigQuery is that of the source table."""
        state = label(resource)
        if not self._is_state_of(state, table):
            self.owner.require(name, self._owner_of(name, state), table, otherwise=_dropped(name))

    def require_replaceable(self, name: TableName, resource: Mapping[str, Any], schema: ReplicatedTableSchema) -> None:
        """Raise DestinationChanged unless a copy of the source table may replace the table with this resource."""
        state = label(resource)
        if not self._is_state_of(state, schema.id):
            owner = self._owner_of(name, state)
            self.owner.require_replaceable(name, owner, schema, otherwise=_dropped(name))

    def _is_state_of(self, state: str, table: TableId) -> bool:
        # Check the former names last, because reading them needs the store.
        return state == self.state_name(table) or state in self.former_state_names(table)

    def _owner_of(self, name: TableName, state: str) -> TableOwner:
        found = _STATE.fullmatch(state)
        described = None if found is None else self.read(state)
        if described is not None:
            return TableOwner(described.pipeline, described.source_id, described.table, described.source)
        if not state:
            return TableOwner("", "", TableId(0), UNKNOWN)
        if found is None or not self._is_state_of(state, table := TableId(int(found[1]))):
            raise not_ours(name, "belongs to another Pipeline")
        return TableOwner(self.owner.context.full_name, self.owner.source_id, table, UNKNOWN)

    def _digest(self, name: str) -> str:
        return hashlib.sha256(f"{name}\0{self.owner.source_id}".encode()).hexdigest()[:16]


def _dropped(name: TableName) -> str:
    return f"or drop {name} in BigQuery"


def label(resource: Mapping[str, Any], name: str = LABEL) -> str:
    """Return a label of a table, by default the one that names its state, or an empty text."""
    return str((resource.get("labels") or {}).get(name, ""))
