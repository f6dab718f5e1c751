"""Tables whose destination may have changes of a history that the source no longer has.

A server that was restarted, or another one that answers in its place, may have been put back to an earlier state.
Its history is verified up to a position of the WAL. A table whose destination is beyond that position is in doubt.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

from levada.errors import SlotLost
from levada.stores.interface import PipelineStore
from levada.values import Lsn, QualifiedTable, TableId, resync_command

_SUBJECT: Final = "doubts"


class UnverifiedTables:
    """Keeps for each table in doubt the position that the source was verified to.

    The doubts are in the store, because a process that ends before it has read the destination leaves them to the next
    one. For one thread.
    """

    def __init__(self, store: PipelineStore) -> None:
        self._store = store
        kept = json.loads(store.get_fingerprint(_SUBJECT) or "{}")
        self._verified = {TableId(int(table)): Lsn.parse(lsn) for table, lsn in kept.items()}
        self._changed = False

    def add(self, tables: Iterable[TableId], verified_to: Lsn) -> None:
        """Doubt the tables, and keep that in the store. An earlier doubt of a table, at a lower position, stays."""
        for table in tables:
            known = self._verified.get(table, verified_to)
            self._verified[table] = min(known, verified_to)
            self._changed = True
        self.save()

    def resolve(self, table: TableId) -> Lsn | None:
        """End the doubt of a table and return the position that the source was verified to, None without a doubt."""
        verified_to = self._verified.pop(table, None)
        self._changed |= verified_to is not None
        return verified_to

    def save(self) -> None:
        """Keep what was settled in the store. Call it before a settled table is written to."""
        if not self._changed:
            return
        if self._verified:
            text = json.dumps({str(int(table)): str(lsn) for table, lsn in sorted(self._verified.items())})
            self._store.store_fingerprint(_SUBJECT, text)
        else:
            self._store.delete_fingerprint(_SUBJECT)
        self._changed = False


def another_history(table: QualifiedTable, position: Lsn, verified_to: Lsn) -> SlotLost:
    """Return the error of a table whose destination is at ``position``, beyond what the source was verified to."""
    return SlotLost(
        "source_changed",
        f"the destination has changes of table {table} up to {position}, but the source was restarted since, and"
        f" is known to have the same history only up to {verified_to}",
        hint=resync_command(table),
    )
