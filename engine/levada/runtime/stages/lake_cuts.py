"""Cuts of all tables: the destination keeps every table as of one LSN, under one name.

The LSN of a cut is the one below which everything is staged when the cut is chosen. No table has applied more then.
Each table applies its changes up to that LSN and is tagged there, and goes on. No table waits for another one.

The store has a cut before any table is tagged, and its end after all are. Between the two, the destination has the
facts: a table that is tagged for the cut's LSN stays as it is, and one that has applied more is left out. So another
process continues a cut where this one ended.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from levada import codes
from levada.destinations.interface import NamedCut
from levada.errors import LevadaError, NeedsOperator, Permanent
from levada.printable import counted
from levada.runtime.job import Job
from levada.runtime.stages.capture import CaptureThread
from levada.runtime.stages.messages import (
    CopiesEnded,
    Discovered,
    JobStarted,
    LakeCutDropped,
    LakeCutWanted,
    SegmentStaged,
    SourceRestarted,
    TagEnded,
)
from levada.runtime.stages.stage import Stage, StageParts
from levada.runtime.tables.cut_rules import outdated, reason_left_out, scheduled_name, strays
from levada.runtime.tables.record import TableRecord
from levada.runtime.tables.table_names import table_names
from levada.runtime.verifications.messages import HoldReleased
from levada.status import CutPhase, CutProgress, CutsProgress
from levada.stores.interface import Cut
from levada.threads import MarkedPool
from levada.values import Lsn, TableId, Watermark, Witness

if TYPE_CHECKING:
    from levada.runtime.config import CutSchedule

_log = logging.getLogger(__name__)

_THREADS: Final = 4
_EXPLAINED: Final = 50
"""The number of left-out tables of a cut whose reasons are kept. A stored cut of many tables must not become large."""
_LONGEST: Final = 200
"""The number of characters of a reason that are kept."""
_NO_TAGS: Final = frozenset({codes.DESTINATION_TABLE_MISSING, codes.TABLE_NOT_OURS, codes.DESTINATION_COLLISION})
"""Error codes of a table that is not there or belongs to another owner, so that no tag has to be removed."""
_ENDED: Final = (CutPhase.COMPLETE, CutPhase.INCOMPLETE)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class LakeCuts(Stage):
    """Makes cuts of all tables, on a schedule and on request, and drops them."""

    def __init__(self, parts: StageParts, epoch: int, capture: CaptureThread) -> None:
        super().__init__(parts)
        self._mark = Watermark(parts.config_ref.current.name, epoch, Lsn(0))
        self._capture = capture
        self._limits = parts.config_ref.current.limits.cuts
        self._pool = MarkedPool(_THREADS, "levada-cuts")
        self._requests: list[LakeCutWanted] = []
        self._next: float | None = None
        """The time of the next scheduled cut, of the monotonic clock."""
        self._not_before: dict[TableId, float] = {}
        """The times before which tags are not removed again."""
        self._cuts = dict(parts.store.get_cuts())
        """The cuts by name. Of a pending one, the store does not have the tables that are left out meanwhile."""
        self._waiting = {cut.name: _to_visit(cut) for cut in self._cuts.values() if cut.phase not in _ENDED}
        """The tables that a pending cut has not tagged yet, and those from which a dropped cut is not removed yet."""
        self._tagged = {
            cut.name: _to_visit(cut) if cut.phase in _ENDED else set()
            for cut in self._cuts.values()
            if cut.phase is not CutPhase.DROPPING
        }
        """The tables that should have the tag of a cut that is not dropped."""
        self._unchecked: set[TableId] = set()
        """The tables whose tags are compared with the stored cuts, as another hand or a copy may have removed some."""
        self._check_at = 0.0
        """The time from which all tables are unchecked again."""
        self._freed: set[TableId] = set()
        """The tables that a cut waits for no longer, until they are visited."""
        self._tables_changed = True
        self._names = table_names(parts.store)
        """The names of tables, also of those that are no longer replicated."""
        self._began = datetime.now(UTC)
        self._strays: dict[TableId, set[str]] = {}
        """The names of scheduled cuts that a table has and the store has not."""
        self._unsaved: set[str] = set()
        """The cuts whose state is not in the store, which had no room."""
        self._save_at = 0.0
        self._last: Witness | None = None
        self._changed = True
        self.published: tuple[CutProgress, ...] = ()
        """All cuts, the newest last. Any thread may read it, because it is replaced as a whole."""
        self._publish()
        parts.inbox.on(LakeCutWanted, self._request)
        parts.inbox.on(LakeCutDropped, self._dropped)
        parts.inbox.on(TagEnded, self._ended)
        parts.inbox.on(SegmentStaged, self._segment_staged)
        parts.inbox.on(Discovered, self._discovered)
        # A copy into a new table has none of the tags, so they are compared with the stored cuts.
        parts.inbox.on(CopiesEnded, lambda ended: self._unchecked.update(ended.outcomes))
        parts.inbox.on(HoldReleased, self._released)
        parts.inbox.on(SourceRestarted, self._source_restarted)

    def _released(self, report: HoldReleased) -> None:
        """Compare the tags of a table from which rows were erased, because it may have left cuts."""
        if report.erased:
            self._unchecked.add(report.table)

    def _segment_staged(self, report: SegmentStaged) -> None:
        """Remember the last transaction that is staged. Capture's position follows only later."""
        self._last = report.manifest.last or self._last

    def _discovered(self, report: Discovered) -> None:
        """Leave out the tables that are no longer replicated, at the next start."""
        self._tables_changed |= report.tables is not None

    # ---- requests -------------------------------------------------------------------------------------------------

    def _request(self, report: LakeCutWanted) -> None:
        """Make the cut that a user has requested, as soon as everything below its ``after`` is staged."""
        refusal = self._refusal(report)
        if refusal is None:
            self._requests.append(report)
            self._publish()
            report.answer.set_result(None)
        else:
            report.answer.set_exception(refusal)

    def _refusal(self, report: LakeCutWanted) -> NeedsOperator | None:
        if report.name in self._cuts or any(r.name == report.name for r in self._requests):
            return NeedsOperator(
                "cut_exists",
                f"there is a cut {report.name} already",
                hint=f"choose another name, or drop it first: levada cut MANIFEST {report.name} --drop",
            )
        tables = list(self._registry.tables.values())
        left_out = [f"{r.name} ({why})" for r in tables if (why := reason_left_out(r))]
        if (left_out and not report.partial) or len(left_out) == len(tables):
            return NeedsOperator(
                "cut_not_ready",
                f"not every table can be part of a cut now: {', '.join(left_out[:5]) or 'there are no tables'}"
                + (f" and {len(left_out) - 5} more" if len(left_out) > 5 else ""),
                hint="wait until levada status MANIFEST shows every table as Ready, or add --partial",
            )
        return None

    def _dropped(self, report: LakeCutDropped) -> None:
        """Remove a cut from the tables, then from the store. One that is dropped already is no error."""
        cut = self._cuts.get(report.name)
        requested = [r for r in self._requests if r.name == report.name]
        self._requests = [r for r in self._requests if r.name != report.name]
        if cut is not None:
            self._drop(cut)
        self._publish()
        if cut is not None or requested:
            report.answer.set_result(None)
        else:
            report.answer.set_exception(_unknown(report.name))

    def _drop(self, cut: Cut) -> None:
        if cut.phase is not CutPhase.DROPPING:
            self._change(replace(cut, phase=CutPhase.DROPPING))
            # Also the tables that were left out, because a job may tag one of them just now.
            self._waiting[cut.name] = set(cut.tables)
            self._tagged.pop(cut.name, None)

    # ---- the choice of the LSN ------------------------------------------------------------------------------------

    def start(self, now: float) -> None:
        """Begin the cuts that are due, and the next steps of the others. ``now`` is in seconds, monotonic.

        Only the tables are visited for which a cut has something to do.
        """
        self._begin_scheduled(now, self._config_ref.current.cuts)
        self._requests = [r for r in self._requests if not self._begin(r.name, r.after, scheduled=False)]
        if self._tables_changed:
            self._leave_out_removed()
        if self._unsaved and now >= self._save_at:
            self._save_again(now)
        if now >= self._check_at:
            self._check_at = now + self._limits.check_every_s
            self._unchecked.update(*self._tagged.values())
        visited = self._unchecked.union(self._freed, self._strays, *self._waiting.values())
        self._freed.clear()
        for table in visited:
            if (record := self._registry.tables.get(table)) is not None:
                self._continue(record, now)
        self._end()
        if self._changed:
            self._publish()

    def _begin_scheduled(self, now: float, schedule: CutSchedule | None) -> None:
        """Begin a scheduled cut if one is due. There is one at a time, so a slow table makes the interval longer."""
        if schedule is None:
            self._next = None
            return
        if self._next is None:
            ages = ((datetime.now(UTC) - c.at).total_seconds() for c in self._cuts.values() if c.scheduled)
            self._next = now + schedule.every_s - min(ages, default=schedule.every_s)
        self._next = min(self._next, now + schedule.every_s)
        if now < self._next or any(self._cuts[n].scheduled and self._is_pending(n) for n in self._waiting):
            return
        if self._begin(scheduled_name(datetime.now(UTC)), Lsn(0), scheduled=True):
            self._next += schedule.every_s * (1 + (now - self._next) // schedule.every_s)
            for name in outdated(self._cuts.values(), schedule.keep, datetime.now(UTC)):
                self._drop(self._cuts[name])

    def _begin(self, name: str, after: Lsn, *, scheduled: bool) -> bool:
        """Choose the LSN of a cut. Return False if it has to wait.

        It waits for a table whose watermark is not known, and for the stream, which may be behind what a former process
        has applied. It also waits for the rows of attached partitions, which bring a table to a later LSN at once.
        """
        registry, lsn = self._registry, self._registry.staged_lsn
        if lsn < after or name in self._cuts:
            return False
        left_out = {r.id: f"{r.name}: {why}" for r in registry.tables.values() if (why := reason_left_out(r))}
        explained = set(sorted(left_out)[:_EXPLAINED])
        taking_part = registry.tables.keys() - left_out.keys()
        self._names |= {record.id: record.name for record in registry.tables.values()}
        if scheduled and not taking_part:
            return False
        backlog = registry.backlog
        if any(not backlog.position_known(t) or backlog.applied_lsn(t) > lsn for t in taking_part):
            return False
        if backlog.arriving.keys() & taking_part:
            return False
        cut = Cut(
            name,
            lsn,
            datetime.now(UTC),
            self._committed_at(lsn),
            CutPhase.PENDING,
            tuple(sorted(registry.tables)),
            tuple((table, why if table in explained else "") for table, why in sorted(left_out.items())),
            scheduled,
        )
        if self._store_new(cut):
            self._waiting[name], self._tagged[name] = _to_visit(cut), set()
        return True

    def _committed_at(self, lsn: Lsn) -> datetime | None:
        """Return the commit time of the last known transaction below an LSN."""
        known = [w for w in (self._last, self._capture.position.witness) if w is not None and w.commit_lsn < lsn]
        last = max(known, key=lambda w: w.commit_lsn, default=None)
        return None if last is None else _EPOCH + timedelta(microseconds=last.commit_ts_us)

    # ---- the tables -----------------------------------------------------------------------------------------------

    def _continue(self, record: TableRecord, now: float) -> None:
        """Tag the table if it has reached a cut, or remove tags from it."""
        waiting = [self._cuts[name] for name, tables in self._waiting.items() if record.id in tables]
        pending = sorted((c for c in waiting if c.phase is CutPhase.PENDING), key=lambda c: c.lsn)
        why = reason_left_out(record)
        if why and pending:
            self._leave_out(record.id, f"{record.name}: {why}", pending)
            pending = []
        record.tag.until = pending[0].lsn if pending else None
        if record.busy:
            return
        reached = next((c for c in pending if self._has_reached(record, c.lsn)), None)
        if pending and reached is None:
            return
        dropped = (*(c.name for c in waiting if c.phase is CutPhase.DROPPING), *self._strays.get(record.id, ()))
        if record.id in self._unchecked and not any(record.id in tables for tables in self._tagged.values()):
            self._unchecked.discard(record.id)
        unchecked = not why and record.id in self._unchecked
        if now < self._not_before.get(record.id, 0):
            dropped, unchecked = (), False
        if reached or dropped or unchecked:
            record.begin(Job.TAG)
            added = None if reached is None else NamedCut(reached.name, reached.lsn)
            self._pool.submit(self._run, record.id, added, dropped)

    def _has_reached(self, record: TableRecord, lsn: Lsn) -> bool:
        backlog = self._registry.backlog
        known = backlog.position_known(record.id) and not record.apply.watermark_unknown
        known = known and backlog.held_at(record.id) is None
        return known and self._registry.staged_lsn >= lsn and not backlog.pending_below(record.id, lsn)

    def _run(self, table: TableId, added: NamedCut | None, removed: tuple[str, ...]) -> None:  # in a pool
        self._inbox.put(JobStarted((table,), datetime.now(UTC)))
        outcome: tuple[NamedCut, ...] | BaseException
        try:
            found = self._destination.update_cuts(table, added, removed, self._mark)
            outcome = tuple(NamedCut(name, lsn) for name, lsn in found.items())
        except BaseException as error:
            outcome = error
        self._inbox.put(TagEnded(table, added, removed, outcome))

    def _ended(self, report: TagEnded) -> None:
        """Record the outcome of a table's job."""
        record = self._registry.tables[report.table]
        record.end()
        if isinstance(report.outcome, BaseException):
            self._failed(record, report, report.outcome)
            return
        self._unchecked.discard(record.id)
        self._not_before.pop(record.id, None)
        if report.added is not None and self._is_pending(report.added.name):
            self._visited(report.added.name, record.id)
            self._tagged[report.added.name].add(record.id)
        for name in report.removed:
            self._visited(name, record.id)
        there = {cut.name: cut.lsn for cut in report.outcome}
        self._strays.pop(record.id, None)
        if unknown := strays(there, self._cuts, self._began):
            self._strays[record.id] = unknown
        tagged = [self._cuts[name] for name, tables in self._tagged.items() if record.id in tables]
        lost = [cut for cut in tagged if there.get(cut.name) != cut.lsn]
        self._leave_out(
            record.id, f"{record.name}: its tag is gone, as after a copy into a new table or an erasure", lost
        )

    def _failed(self, record: TableRecord, report: TagEnded, error: BaseException) -> None:
        if isinstance(error, Permanent):
            self._registry.fail(error)
            return
        known = error if isinstance(error, LevadaError) else None
        code, message = (codes.INTERNAL_ERROR, type(error).__name__) if known is None else (known.code, known.message)
        _log.warning("table %s: its cuts were not updated: %s [%s]", record.name, message, code, exc_info=known is None)
        # The table's own batches and maintenance report the error, if it concerns them.
        self._not_before[record.id] = time.monotonic() + self._limits.retry_s
        if report.added is not None and self._is_pending(report.added.name):
            self._leave_out(record.id, f"{record.name}: {message} [{code}]", [self._cuts[report.added.name]])
        if code in _NO_TAGS:
            for name in report.removed:
                self._visited(name, record.id)

    def _is_pending(self, name: str) -> bool:
        return name in self._cuts and self._cuts[name].phase is CutPhase.PENDING

    def _visited(self, name: str, table: TableId) -> None:
        if name in self._waiting:
            self._waiting[name].discard(table)
            self._freed.add(table)
            self._changed = True

    # ---- tables that are left out ---------------------------------------------------------------------------------

    def _source_restarted(self, report: SourceRestarted) -> None:
        """End the cuts above an LSN without the tables that have not reached them.

        The WAL above that LSN may be another one, so that these tables may get other changes than the tagged ones.
        """
        for name in [n for n in self._waiting if self._is_pending(n) and self._cuts[n].lsn > report.verified_to]:
            for table in tuple(self._waiting[name]):
                why = f"{self._name_of(table)}: the source was restarted before the table reached the cut"
                self._leave_out(table, why, [self._cuts[name]])
        self._end()

    def _leave_out_removed(self) -> None:
        self._tables_changed = False
        replicated = self._registry.tables.keys()
        self._unchecked &= replicated
        self._strays = {table: names for table, names in self._strays.items() if table in replicated}
        for cut in tuple(self._cuts.values()):
            for table in set(cut.tables) - replicated - dict(cut.left_out).keys():
                if cut.phase is CutPhase.DROPPING:
                    self._visited(cut.name, table)
                else:
                    self._leave_out(table, f"{self._name_of(table)}: no longer replicated", [self._cuts[cut.name]])

    def _name_of(self, table: TableId) -> str:
        return str(self._names.get(table, f"table {int(table)}"))

    def _leave_out(self, table: TableId, why: str, cuts: Iterable[Cut]) -> None:
        for cut in cuts:
            self._visited(cut.name, table)
            self._tagged[cut.name].discard(table)
            kept_why = why[:_LONGEST] if len(cut.left_out) < _EXPLAINED else ""
            lacking = replace(cut, left_out=tuple(sorted({**dict(cut.left_out), table: kept_why}.items())))
            if cut.phase is CutPhase.PENDING:
                # Stored at its end. A process that continues it finds the same, or can tag the table.
                self._cuts[cut.name] = lacking
            else:
                self._change(replace(lacking, phase=CutPhase.INCOMPLETE))
            if kept_why:
                _log.warning("cut %s lacks %s", cut.name, kept_why)

    # ---- the end --------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """Store the end of the cuts that wait for no table any more."""
        for name, tables in tuple(self._waiting.items()):
            cut = self._cuts[name]
            if cut.phase is CutPhase.DROPPING:
                tables &= self._registry.tables.keys()
            if tables:
                continue
            if cut.phase is CutPhase.DROPPING:
                self._store.delete_cut(name)
                del self._cuts[name]
                self._unsaved.discard(name)
                _log.info("cut %s is dropped", name)
            else:
                phase = CutPhase.INCOMPLETE if cut.left_out else CutPhase.COMPLETE
                self._change(replace(cut, phase=phase))
                _log.info("cut %s at %s is %s", name, cut.lsn, phase.lower())
            del self._waiting[name]
            self._changed = True

    def _store_new(self, cut: Cut) -> bool:
        """Store a new cut. Return False if the store has no room, which is no reason to end the pipeline."""
        try:
            self._store.store_cut(cut)
        except NeedsOperator as error:
            _log.error("cut %s cannot be stored, so it is not made: %s", cut.name, error)
            return False
        self._cuts[cut.name], self._changed = cut, True
        return True

    def _change(self, cut: Cut) -> None:
        """Change a cut. If the store has no room, the change is stored later.

        Until then another process finds the former state, and compares the tables with it.
        """
        self._cuts[cut.name], self._changed = cut, True
        try:
            self._store.store_cut(cut)
        except NeedsOperator as error:
            _log.error("cut %s is %s, which cannot be stored: %s", cut.name, cut.phase.lower(), error)
            self._unsaved.add(cut.name)
            self._save_at = time.monotonic() + self._limits.retry_s
        else:
            self._unsaved.discard(cut.name)

    def _save_again(self, now: float) -> None:
        self._save_at = now + self._limits.retry_s
        for name in tuple(self._unsaved):
            self._change(self._cuts[name])

    def close(self) -> None:
        """Wait for the running jobs. Their reports are in the inbox afterwards."""
        self._pool.shutdown(cancel_futures=True)

    # ---- progress -------------------------------------------------------------------------------------------------

    def _publish(self) -> None:
        self._changed = False
        requested = [r.name for r in self._requests]
        cuts = sorted(self._cuts.values(), key=lambda c: (c.at, c.name))
        self.published = (
            *(cut_progress(cut, len(self._waiting.get(cut.name, ()))) for cut in cuts),
            *(CutProgress(name=name, phase=CutPhase.REQUESTED) for name in requested),
        )

    def progress(self) -> CutsProgress:
        """Return a summary of the cuts."""
        schedule = self._config_ref.current.cuts
        complete = [c for c in self.published if c.phase is CutPhase.COMPLETE]
        return CutsProgress(
            every_seconds=None if schedule is None else int(schedule.every_s),
            kept=len(complete),
            last_complete=complete[-1] if complete else None,
            pending=next((c for c in self.published if c.phase is CutPhase.PENDING), None),
        )


def cut_progress(cut: Cut, waiting: int = 0) -> CutProgress:
    """Return a cut as users see it. ``waiting`` tables have not reached it yet."""
    explained = [why for _, why in cut.left_out if why]
    return CutProgress(
        name=cut.name,
        phase=cut.phase,
        lsn=cut.lsn,
        at=cut.at,
        committed_at=cut.committed_at,
        tables=len(cut.tables),
        tagged=len(cut.tables) - len(cut.left_out) - (waiting if cut.phase is CutPhase.PENDING else 0),
        left_out=(*explained, *([counted(more, "more table")] if (more := len(cut.left_out) - len(explained)) else ())),
        scheduled=cut.scheduled,
    )


def _to_visit(cut: Cut) -> set[TableId]:
    if cut.phase is CutPhase.DROPPING:
        return set(cut.tables)
    return set(cut.tables) - dict(cut.left_out).keys()


def _unknown(name: str) -> NeedsOperator:
    return NeedsOperator("cut_unknown", f"there is no cut {name}", hint="levada cuts MANIFEST lists the cuts")
