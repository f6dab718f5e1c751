"""The tables that are compared with the source after a lost slot, instead of being copied again.

Such a table missed changes. It is parked, and its changes from the new slot on are staged. Once all of its rows at the
destination equal the source at one LSN, it goes on from there.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from levada import codes
from levada.errors import SlotLost, Transient
from levada.postgres.membership import PublicationState
from levada.runtime.tables.phases import at_restart
from levada.runtime.tables.publication_gaps import renew_memberships
from levada.runtime.tables.rules import awaits_comparison, needs_resync
from levada.status import RetryPolicy
from levada.stores.interface import PipelineStore
from levada.stores.phases import Errored, FinishedCopy, Init, SyncDone, TableReplicationPhase
from levada.values import Lsn, QualifiedTable, TableId, resync_command

_log = logging.getLogger(__name__)

_MISSED: Final = frozenset(
    {
        codes.PARTITION_CHANGED,
        codes.PUBLICATION_CHANGED,
        codes.PUBLICATION_MEMBERSHIP_CHANGED,
        codes.SEGMENT_DAMAGED,
        codes.SEGMENT_MISSING,
        codes.SOURCE_CHANGED,
        codes.STAGING_FILE_MISSING,
        codes.TABLE_REWRITTEN,
    }
)
"""Codes of tables that missed changes before the slot was lost, for causes that a comparison settles."""


@dataclass(frozen=True, slots=True)
class Comparisons:
    """The phases of the tables after a lost slot. Those that were copied completely wait for their comparison.

    ``held`` are those of them that are parked until a resync is requested, see `held_parts`.
    """

    phases: Mapping[TableId, TableReplicationPhase]
    held: Mapping[TableId, Errored]

    @classmethod
    def after(cls, store: PipelineStore, lost: SlotLost, held: Mapping[TableId, Errored]) -> Self:
        """Return the phase of each table whose copy has begun, so that none goes on without what it missed."""
        found = {
            table: _pending(lost) if _was_copied(store, table, phase) else Init()
            for table, phase in store.get_table_replication_states().items()
            if not isinstance(phase, Init)
        }
        return cls({**found, **held}, held)

    def begin(self, store: PipelineStore, publication: PublicationState, known: Lsn, position: Lsn) -> bool:
        """Let the tables be compared, whose phases are stored, from a new slot at ``position`` on.

        ``known`` is the highest LSN that was read from the source. If the slot begins below it, the server was
        restored, and what a comparison writes would be taken for older than what the tables have. Then all tables are
        copied, and the result is False.
        """
        if known >= position:
            _log.warning("all tables are copied: the new slot begins at %s, and WAL up to %s was read", position, known)
            store.update_table_replication_states(dict.fromkeys(self.phases.keys() - self.held.keys(), Init()))
            return False
        pending = {table for table, phase in self.phases.items() if awaits_comparison(phase)}
        ahead = {table for table in pending if _is_beyond(store.get_phase_before_error(table), position)}
        store.update_table_replication_states(dict.fromkeys(ahead, Init()))
        renew_memberships(store, publication, pending - ahead)
        return True


def held_parts(store: PipelineStore, lost: SlotLost, parts: Mapping[TableId, QualifiedTable]) -> dict[TableId, Errored]:
    """Return the phase of each of the tables ``parts``, which copy a part or nothing, whose copy was complete.

    Such a table cannot be compared, and a copy would remove the rows that the stream has brought, of which the source
    may have none any more.
    """
    phases = store.get_table_replication_states()
    return {
        table: Errored(
            codes.SLOT_LOST,
            f"{name} missed changes ({lost.code}), and a copy would remove the rows that came by the stream, as its"
            " copy.mode or copy.where leaves them out",
            f"to go on without these rows: {resync_command(name)}",
            RetryPolicy.NO_RETRY,
        )
        for table, name in parts.items()
        if table in phases and not isinstance(at_restart(_before_error(store, table, phases[table])), Init)
    }


def _before_error(store: PipelineStore, table: TableId, phase: TableReplicationPhase) -> TableReplicationPhase:
    return (store.get_phase_before_error(table) or Init()) if isinstance(phase, Errored) else phase


def _is_beyond(phase: TableReplicationPhase | None, position: Lsn) -> bool:
    """Return True for a table whose copy was taken at an LSN above ``position``."""
    return isinstance(phase, FinishedCopy | SyncDone) and phase.lsn > position


def _was_copied(store: PipelineStore, table: TableId, phase: TableReplicationPhase) -> bool:
    if isinstance(phase, Errored):
        if needs_resync(phase) and phase.code not in _MISSED:
            return False
        return awaits_comparison(phase) or not isinstance(at_restart(store.get_phase_before_error(table)), Init)
    return not isinstance(at_restart(phase), Init)


def _pending(lost: SlotLost) -> Errored:
    error = Transient(
        "comparison_pending",
        f"changes were missed ({lost.code}), so the table is compared with the source before it goes on",
        hint="wait until levada status MANIFEST shows it as Ready. To copy it instead: levada resync MANIFEST TABLE",
    )
    # It is retried by itself, but at no time. A retry at a time would go on without the changes that were missed.
    return Errored(error.code, error.message, error.hint, RetryPolicy.TIMED_RETRY)
