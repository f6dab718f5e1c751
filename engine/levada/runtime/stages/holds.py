"""Holds: a table at the destination has exactly the changes below one LSN, for the thread that holds it.

`levada.verify` explains why such a table equals a snapshot of the source. A hold has three steps, which another thread
requests through the inbox:

1. `HoldWanted`: No batch of the table runs, and none starts.
2. `HoldAt`: The caller gives the LSN, which is not below anything that was applied. Batches run up to it, not beyond.
3. `HoldReleased`: The table applies changes as before.

Between the steps the job `Job.HOLD` has the table, so that no other thread calls the destination for it.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from levada import codes
from levada.errors import LevadaError, NeedsOperator, Transient
from levada.runtime.job import Job
from levada.runtime.source.requestable_tables import no_table_name
from levada.runtime.stages.stage import Stage, StageParts
from levada.runtime.tables.hold_state import Held
from levada.runtime.tables.publication_gaps import adopt_membership
from levada.runtime.tables.rules import awaits_comparison, needs_resync
from levada.runtime.tables.verification_record import store_verification, verification_record
from levada.runtime.verifications.messages import (
    HoldAt,
    HoldReleased,
    HoldWanted,
    NotCompared,
    NotProved,
    Proved,
    VerificationBegan,
    VerificationEnded,
    Verified,
)
from levada.status import ErrorProgress, ProofProgress, RetryPolicy
from levada.stores.phases import DataSync, Errored, Init, Ready
from levada.values import QualifiedTable, resync_command

if TYPE_CHECKING:
    from levada.runtime.tables.record import TableRecord
    from levada.values import TableId

_log = logging.getLogger(__name__)


class HoldStage(Stage):
    """Holds tables, and brings them to the LSNs of their holds. For the supervisor's thread."""

    def __init__(self, parts: StageParts) -> None:
        super().__init__(parts)
        self._holds: list[HoldWanted] = []
        self._ends: dict[TableId, HoldAt] = {}
        self._held: dict[TableId, Held] = {}
        parts.inbox.on(HoldWanted, self._hold)
        parts.inbox.on(HoldAt, self._hold_at)
        parts.inbox.on(HoldReleased, self._release)
        parts.inbox.on(NotCompared, self._not_compared)
        parts.inbox.on(Verified, self._verified)
        parts.inbox.on(Proved, self._proved)
        parts.inbox.on(NotProved, self._not_proved)
        parts.inbox.on(VerificationBegan, lambda began: self._note(began.table, tried=began.at))
        parts.inbox.on(VerificationEnded, lambda end: self._note(end.table, error=end.error, nonce=end.nonce))

    def start(self) -> None:
        """Answer the requests whose conditions are met."""
        waiting, self._holds = self._holds, []
        self._holds += [request for request in waiting if not self._try_hold(request)]
        for table in list(self._ends):
            self._try_end(table)

    def _hold(self, request: HoldWanted) -> None:
        """Hold a table as soon as no job has it."""
        self._holds.append(request)

    def _hold_at(self, request: HoldAt) -> None:
        """Let a held table apply its changes below an LSN, and hold it again there."""
        record = self._registry.tables.get(request.table)
        if record is None or request.table not in self._held:
            request.answer.set_exception(_gone())
            return
        record.hold.until = request.until
        if not isinstance(record.phase, Errored):
            # Its batches take the table until it has reached the LSN.
            record.end()
        self._ends[request.table] = request

    def _verified(self, report: Verified) -> None:
        """Record the result of a comparison, unless the table is gone or was copied again meanwhile.

        A Ready table that cannot be read at the destination is parked. One that differs streams on and is not Ready.
        """
        record = self._registry.tables.get(report.held.table)
        if record is None or record.copy.committed_at != report.held.copied_at:
            report.answer.set_exception(_gone())
            return
        error = report.error
        differs = error if error is not None and error.code == codes.ROWS_DIFFER else None
        if report.result is not None:
            known = verification_record(self._store, record.id)
            store_verification(self._store, record.id, known.compared(report.result, _shown(differs)))
        if differs is not None:
            _log.error("table %s is not Ready: %s [%s]", record.name, differs.message, differs.code)
        elif error is not None and isinstance(record.phase, Ready):
            self._registry.phases.park(record, error)
        report.answer.set_result(None)

    def _proved(self, report: Proved) -> None:
        """Record the comparison of a range, unless the table is gone or was copied again meanwhile."""
        record = self._registry.tables.get(report.held.table)
        if record is None or record.copy.committed_at != report.held.copied_at:
            report.answer.set_exception(_gone())
            return
        self._note(record.id, proof=report.proof, proved_key=report.key, proved_to=report.to)
        report.answer.set_result(None)

    def _not_proved(self, report: NotProved) -> None:
        known = verification_record(self._store, report.table).proof or ProofProgress(at=report.at)
        proof = replace(known, at=report.at, range_seconds=report.busy_s, problem=report.problem)
        self._note(report.table, proof=proof)

    def _forget_reached(self, table: TableId) -> None:
        known = verification_record(self._store, table)
        if known.proved_to is not None and known.proof is not None:
            proof = replace(known.proof, began=None)
            store_verification(self._store, table, replace(known, proof=proof, proved_to=None))

    def _note(self, table: TableId, **changes: Any) -> None:
        """Record the begin or the end of a verification that the manifest asks for."""
        if table in self._registry.tables:
            known = verification_record(self._store, table)
            store_verification(self._store, table, replace(known, **changes))

    def _release(self, request: HoldReleased) -> None:
        """Let the table apply changes as before. A table that is not held is no error.

        A parked table that was ``repaired`` is retried, because what it has at the destination is as of the hold.
        """
        self._ends.pop(request.table, None)
        record = self._registry.tables.get(request.table)
        if request.erased:
            # The key that the comparison by ranges has reached may be one that was erased.
            self._forget_reached(request.table)
        # Also of a table that has left, so that it can be held if it returns.
        if self._held.pop(request.table, None) is None or record is None:
            return
        record.hold.until = None
        if record.busy is Job.HOLD:
            record.end()
        if request.repaired:
            if awaits_comparison(record.phase) and not record.resync.has_copy:
                adopt_membership(self._store, record.id)
            self._registry.repaired(record)

    def _not_compared(self, report: NotCompared) -> None:
        """Let a table be copied that awaits a comparison."""
        record = self._registry.tables.get(report.table)
        if record is None or not isinstance(record.phase, Errored) or not awaits_comparison(record.phase):
            return
        why = f"{record.phase.reason}. It is not compared with the source instead of a copy: {report.error.message}"
        error = NeedsOperator("row_filter_changed", why, hint=resync_command(record.name))
        self._registry.phases.park_until_resync(record, error)

    def _try_hold(self, request: HoldWanted) -> bool:
        record = next((r for r in self._registry.tables.values() if r.name == request.name), None)
        if record is None:
            request.answer.set_exception(_not_replicated(request))
            return True
        if record.id in self._held:
            # A verification that was cancelled while it waited for the table gives it back soon.
            return False
        if record.suspended or record.resync.has_copy or isinstance(record.phase, Init | DataSync):
            request.answer.set_exception(_not_ready(record))
            return True
        if record.busy or not isinstance(record.phase, Ready | Errored):
            return False
        if isinstance(record.phase, Ready) and not self._registry.backlog.position_known(record.id):
            return False
        if record.id in self._registry.backlog.arriving and isinstance(record.phase, Ready):
            # The rows of an attached partition bring the table to the LSN of their snapshot, beyond that of the hold.
            return False
        record.begin(Job.HOLD)
        parked = record.phase.code if isinstance(record.phase, Errored) else ""
        held = Held(
            record.id, parked, needs_resync(record.phase), awaits_comparison(record.phase), record.copy.committed_at
        )
        self._held[record.id] = held
        request.answer.set_result(held)
        return True

    def _try_end(self, table: TableId) -> None:
        record, request = self._registry.tables.get(table), self._ends[table]
        if record is None or (record.busy is None and not isinstance(record.phase, Ready)):
            self._refuse(table)
            return
        if record.busy is Job.HOLD and not self._held[table].parked:
            # It was parked after it was held.
            self._refuse(table)
        elif record.busy is Job.HOLD and self._registry.staged_lsn >= request.until:
            # A parked table, which stays where it is.
            self._ends.pop(table).answer.set_result(None)
        if record.busy:
            return
        if self._registry.backlog.applied_lsn(table) > request.until:
            # The table was copied again since it was held.
            self._refuse(table)
        elif self._registry.staged_lsn >= request.until and self._registry.position(record) >= request.until:
            record.begin(Job.HOLD)
            self._ends.pop(table).answer.set_result(None)

    def _refuse(self, table: TableId) -> None:
        self._ends.pop(table).answer.set_exception(_gone())


def _shown(differs: LevadaError | None) -> ErrorProgress | None:
    if differs is None:
        return None
    return ErrorProgress(differs.code, differs.message, differs.hint, RetryPolicy.MANUAL_RETRY)


def _gone() -> Transient:
    return Transient(
        "table_changed",
        "the table was copied again, parked or removed during its verification, or a partition with rows was attached",
    )


def _not_ready(record: TableRecord) -> Transient:
    state = f"in phase {record.phase.name}"
    hint = "wait until levada status MANIFEST shows it as Ready, then verify again"
    if record.resync.has_copy:
        state = "being copied again"
    if record.suspended:
        # The phase of a suspended table may be Ready already.
        state, hint = "suspended", "set suspend: false in its TableSync, then verify again"
    return Transient("verify_not_ready", f"table {record.name} is {state}, so it cannot be compared yet", hint=hint)


def _not_replicated(request: HoldWanted) -> NeedsOperator:
    if not isinstance(request.name, QualifiedTable):
        return no_table_name(request.name)
    return NeedsOperator(
        "unknown_table",
        f"not a table of this pipeline: {request.name}",
        hint="levada status MANIFEST lists the tables",
    )
