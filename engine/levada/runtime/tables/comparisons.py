"""The tables that are compared with the source after a lost slot, instead of being copied again. Pure.

Such a table missed changes. It is parked, and its changes from the new slot on are staged. Once all of its rows at the
destination equal the source at one LSN, it goes on from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from levada import codes
from levada.errors import SlotLost, Transient
from levada.runtime.tables.phases import at_restart
from levada.runtime.tables.rules import awaits_comparison, needs_resync
from levada.status import RetryPolicy
from levada.stores.interface import PipelineStore
from levada.stores.phases import Errored, FinishedCopy, Init, SyncDone, TableReplicationPhase
from levada.values import Lsn, TableId

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


def phases_after_loss(store: PipelineStore, lost: SlotLost) -> Mapping[TableId, TableReplicationPhase]:
    """Return the phase of each table whose copy has begun, so that none goes on with the changes that it missed.

    A table that was copied completely waits for its comparison. Any other one is copied again.
    """
    return {
        table: _pending(lost) if _was_copied(store, table, phase) else Init()
        for table, phase in store.get_table_replication_states().items()
        if not isinstance(phase, Init)
    }


def behind(store: PipelineStore, tables: Mapping[TableId, TableReplicationPhase], position: Lsn) -> set[TableId]:
    """Return those of the tables that may have changes above ``position``, at which the new slot begins.

    What is written by a comparison would be taken for older than what they have.
    """
    return {
        table
        for table, phase in tables.items()
        if isinstance(phase, Errored)
        and isinstance(before := store.get_phase_before_error(table), FinishedCopy | SyncDone)
        and before.lsn > position
    }


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
