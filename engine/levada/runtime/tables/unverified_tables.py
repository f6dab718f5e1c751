"""Tables whose destination may have changes of a WAL history that the source no longer has.

A restarted server, or another one behind the same address, may have been restored to an earlier state. Its history is
verified up to an LSN. A table whose watermark is beyond that LSN, or unknown, is unverified.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from levada.errors import SlotLost
from levada.stores.interface import PipelineStore
from levada.stores.phases import Catchup, FinishedCopy, SyncWait, TableReplicationPhase
from levada.values import Lsn, QualifiedTable, TableId, resync_command

_SUBJECT: Final = "doubts"


class UnverifiedTables:
    """Keeps, for each unverified table, the LSN up to which the source's history was verified.

    The LSNs are in the store, because the process may end before it has read the destination's watermark. For one
    thread.
    """

    def __init__(self, store: PipelineStore) -> None:
        self._store = store
        kept = json.loads(store.get_fingerprint(_SUBJECT) or "{}")
        self._verified = {TableId(int(table)): Lsn.parse(lsn) for table, lsn in kept.items()}
        self._changed = False

    def add(self, tables: Iterable[TableId], verified_to: Lsn) -> None:
        """Add the tables and save them in the store. A table that was added before keeps the lower of its two LSNs."""
        for table in tables:
            known = self._verified.get(table, verified_to)
            self._verified[table] = min(known, verified_to)
            self._changed = True
        self.save()

    def resolve(self, table: TableId) -> Lsn | None:
        """Remove a table and return the LSN up to which the source was verified, None for an unknown table."""
        verified_to = self._verified.pop(table, None)
        self._changed |= verified_to is not None
        return verified_to

    def save(self) -> None:
        """Save the changes in the store. Call it before changes are applied to a table that was resolved."""
        if not self._changed:
            return
        if self._verified:
            text = json.dumps({str(int(table)): str(lsn) for table, lsn in sorted(self._verified.items())})
            self._store.store_fingerprint(_SUBJECT, text)
        else:
            self._store.delete_fingerprint(_SUBJECT)
        self._changed = False


class Verdict(StrEnum):
    """The outcome of comparing a table's position with the verified WAL history."""

    VERIFIED = "verified"
    COPY_AGAIN = "copy again"
    """The stream had not reached the copy's snapshot when the server was restarted, so nothing was applied to it."""
    PARK = "park"


def judge_position(phase: TableReplicationPhase, position: Lsn, verified_to: Lsn) -> Verdict:
    """Compare a table's watermark with the LSN up to which the source's history was verified."""
    if position <= verified_to:
        return Verdict.VERIFIED
    return Verdict.COPY_AGAIN if isinstance(phase, FinishedCopy | SyncWait | Catchup) else Verdict.PARK


def another_history(table: QualifiedTable, position: Lsn, verified_to: Lsn) -> SlotLost:
    """Return the error of a table whose watermark ``position`` is beyond the LSN ``verified_to``."""
    return SlotLost(
        "source_changed",
        f"the destination has changes of table {table} up to {position}, but the source was restarted since, and"
        f" is known to have the same history only up to {verified_to}",
        hint=resync_command(table),
    )
