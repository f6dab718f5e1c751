"""The check that each table has a place of its own at the destination."""

from __future__ import annotations

import json

from levada.destinations import TableMode
from levada.errors import NeedsOperator
from levada.runtime.tables.part import Part, SharedParts
from levada.runtime.tables.phase_changes import PhaseChanges
from levada.runtime.tables.places import MISPLACED, find_misplaced, target_name
from levada.runtime.tables.record import TableRecord
from levada.runtime.tables.table_retries import TableRetries
from levada.schema import ReplicatedTableSchema
from levada.stores.phases import Errored, Init
from levada.values import TableId


def _subject(table: TableId) -> str:
    return f"mode_{int(table)}"


class PlaceCheck(Part):
    """Parks tables without a place of their own, and retries them when the place is free."""

    def __init__(self, shared: SharedParts, phases: PhaseChanges, retries: TableRetries) -> None:
        super().__init__(shared)
        self._phases = phases
        self._retries = retries

    def check(self) -> None:
        """Park each table whose copy waits for a place that another table has. Retry it when the place is free.

        Do nothing if no place has changed since the last check.
        """
        if not self._tables.places_changed:
            return
        self._tables.places_changed = False
        wrong = self._misplaced()
        for record in self._tables.records.values():
            record.place.name = self._name(record)
            last = self._handled.last_settings(record)
            record.place.follows = last is not None and last.follows
            error = wrong.get(record.id)
            if error is None and record.place.misplaced:
                record.place.misplaced = False
                if isinstance(record.phase, Errored) and record.phase.code in MISPLACED:
                    self._retries.retry(record)
            elif error is not None and isinstance(record.phase, Init) and not record.busy:
                self._park(record, error)

    def refuse(self, record: TableRecord) -> bool:
        """Park a table that must not be copied for want of a place, and return True. Return False for any other."""
        if record.place.misplaced:
            return True
        error = self._misplaced().get(record.id)
        if error is not None:
            # The table at the destination stays.
            self._park(record, error)
        return error is not None

    def add(self, record: TableRecord, schema: ReplicatedTableSchema | None) -> None:
        """Set the place of a table that the pipeline begins with. ``schema`` is its newest schema version.

        That may be a version which is only staged, and has another key than the table at the destination.
        """
        record.place.misplaced = isinstance(record.phase, Errored) and record.phase.code in MISPLACED
        self._tables.places_changed = True
        stored = self._store.get_fingerprint(_subject(record.id))
        if stored is not None:
            record.place.mode, record.place.note = json.loads(stored)
        elif schema is not None:
            record.place.mode, record.place.note = self._mode(record, schema)

    def forget(self, table: TableId) -> None:
        """Forget the mode of a table that is no longer replicated."""
        if self._store.get_fingerprint(_subject(table)) is not None:
            self._store.delete_fingerprint(_subject(table))

    def places_changed(self) -> None:
        """Compare the places of all tables again before the next copy begins."""
        self._tables.places_changed = True

    def copied(self, record: TableRecord, schema: ReplicatedTableSchema) -> None:
        """Update the table's mode after a copy. A copy to another place than before frees the former one."""
        self.update_mode(record, schema)
        if self._name(record) != record.place.name:
            self.places_changed()

    def update_mode(self, record: TableRecord, schema: ReplicatedTableSchema) -> None:
        """Store the mode of a table that was copied with a schema. Only another copy gives it another one."""
        record.place.mode, record.place.note = found = self._mode(record, schema)
        self._store.store_fingerprint(_subject(record.id), json.dumps(found))

    def _mode(self, record: TableRecord, schema: ReplicatedTableSchema) -> tuple[str, str]:
        """Return the mode, with a note if a table without a key is kept as a changelog."""
        mode = self._destination.effective_mode(self._handled.settings(record).target(schema, self._config_ref.current))
        keyless = mode is TableMode.CHANGELOG and not schema.key and self._destination.capabilities.upsert
        return mode.value, f"the table has no key (replica identity {schema.identity.value})" if keyless else ""

    def _name(self, record: TableRecord) -> str:
        return target_name(self._destination.target_name, record.name, self._handled.settings(record))

    def _park(self, record: TableRecord, error: NeedsOperator) -> None:
        record.place.misplaced = True
        self._phases.park(record, error)

    def _misplaced(self) -> dict[TableId, NeedsOperator]:
        known = {r.id: (r.name, self._handled.last_settings(r)) for r in self._tables.records.values()}
        return find_misplaced(self._config_ref.current, self._destination.target_name, known)
