"""The progress snapshot, assembled from the state of the supervisor, of capture and of the lag sampler."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from levada.errors import LevadaError
from levada.runtime.config import RetryLimits
from levada.runtime.copies.remote import OrderedCopy
from levada.runtime.job import Job
from levada.runtime.report.outlook import Outlook, latest
from levada.runtime.report.stream_delay import Delay, StreamDelay, bytes_after
from levada.runtime.stages.capture import CaptureThread
from levada.runtime.supervisor import Supervisor
from levada.runtime.tables.record import TableRecord, error_progress
from levada.runtime.tables.registry import TableRegistry
from levada.runtime.tables.retries import park
from levada.runtime.tables.rules import needs_resync
from levada.runtime.tables.verification_record import difference_of
from levada.segments.memory import MemoryBudget
from levada.status import (
    CaptureProgress,
    CopyProgress,
    ErrorProgress,
    MemoryProgress,
    PipelineState,
    Progress,
    PublicationProgress,
    ResyncProgress,
    ResyncStep,
    SlotProgress,
    StagingProgress,
    TablePhase,
    TableProgress,
)

_RATE_WINDOW_S = 10.0
_REFUSES_UPDATES = "PostgreSQL refuses its UPDATEs and DELETEs: it is published without a replica identity"
_FOLLOWS = "it is copied to the place of its name, which was that of another table"


class RateMeter:
    """Measures rows per second over the last ten seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def rate(self, now: float, total: int) -> float:
        """Add a sample of the running total and return the rate per second. ``now`` is in seconds, monotonic."""
        self._samples.append((now, total))
        while now - self._samples[0][0] > _RATE_WINDOW_S:
            self._samples.popleft()
        then, before = self._samples[0]
        return (total - before) / (now - then) if now > then else 0.0


@dataclass(frozen=True, slots=True)
class Trends:
    """The trends of a pipeline's figures."""

    rate: RateMeter = field(default_factory=RateMeter)
    outlook: Outlook = field(default_factory=Outlook)
    stream: StreamDelay = field(default_factory=StreamDelay)


def _note(record: TableRecord, registry: TableRegistry) -> str:
    if registry.membership.refuses_updates(record.id):
        return _REFUSES_UPDATES
    return _FOLLOWS if record.place.follows else record.place.note


def table_progress(record: TableRecord, registry: TableRegistry, now_us: int, delay_s: float = 0.0) -> TableProgress:
    """Return one table's progress. ``now_us`` is in microseconds since 1970 UTC.

    ``delay_s`` is for how many seconds the replication stream has been closed, or has trailed the source. The reported
    lag is at least that, because the table may miss changes of that time.
    """
    pending, controls = registry.backlog.pending(record.id), registry.handled.controls(record)
    verification = registry.handled.verification(record)
    differs, settings = difference_of(verification, record.phase), registry.handled.last_settings(record)
    oldest = pending.oldest_commit_ts_us
    copying = record.phase.name in ("Init", "DataSync")
    # Of a table that missed changes only the destination has the position that it reached.
    unplaced = copying or needs_resync(record.phase)
    # The size of an earlier copy does not describe one that has not begun.
    running = record.copy.running
    copied = running.progress() if running is not None else record.copy.interrupted if copying else record.copy.finished
    if copied is not None:
        # The note is of a copy that runs or waits.
        note = (copied.note or record.copy.began_again) if copying else ""
        copied = replace(copied, note=note)
    return TableProgress(
        id=record.id,
        schema=record.name.schema,
        name=record.name.name,
        phase=TablePhase.ERRORED if differs is not None else record.phase.name,
        mode=record.place.mode,
        note=_note(record, registry),
        copy=copied if copied is not None or copying else _finished_before(),
        copied_rows="" if settings is None else settings.copied_rows,
        applied_lsn=registry.position(record) if registry.backlog.position_known(record.id) and not unplaced else None,
        lag_seconds=None if unplaced else max(delay_s, (now_us - oldest) / 1e6 if oldest is not None else 0.0),
        pending_segments=pending.segments,
        pending_rows=pending.rows,
        staged_bytes=pending.bytes,
        source_bytes=registry.membership.source_bytes(record.id),
        rows_applied=record.apply.rows_applied,
        last_apply_seconds=record.apply.last_apply_s or None,
        last_apply_tasks=record.apply.last_apply_tasks,
        last_commit_at=record.last_commit_at,
        unrepresentable=record.unrepresentable,
        error=differs or registry.own_copies.error(record),
        copied_again=registry.own_copies.resolved(record),
        verified=verification.last,
        verify_tried=verification.tried,
        verify_error=verification.error,
        verify_nonce=verification.nonce,
        proof=verification.proof,
        suspended=record.suspended,
        retry_nonce=controls.retry_nonce,
        resync_nonce=controls.resync_nonce,
        resync=resync_progress(record, registry),
        copy_order=running.token if isinstance(running, OrderedCopy) else "",
        job="" if record.busy is None else record.busy,
        job_since=None if record.job is None else record.job.since,
        destination_table=record.place.name,
    )


def resync_progress(record: TableRecord, registry: TableRegistry) -> ResyncProgress | None:
    """Return the progress of the table's shadow copy, or None if there is none and none was given up."""
    resync = record.resync
    if not resync.has_copy or resync.abandoned:
        given_up = resync.given_up
        return None if given_up is None else ResyncProgress(ResyncStep.GIVEN_UP, error=given_up)
    pending = registry.backlog.pending(record.id, shadow=True)
    return ResyncProgress(resync.step.value, resync.shadow.progress, pending.rows, resync.error)


def capture_progress(capture: CaptureThread, rate: float) -> CaptureProgress:
    """Return the positions, counters and error of the capture thread. ``rate`` is in rows per second."""
    position = capture.position
    return CaptureProgress(
        connected=capture.connected,
        received_lsn=position.received_lsn,
        staged_lsn=position.staged_lsn,
        acknowledged_lsn=position.acknowledged_lsn,
        rows=position.rows,
        transactions=position.transactions,
        rows_per_second=rate,
        error=capture.error,
    )


def pipeline_progress(
    supervisor: Supervisor,
    state: PipelineState,
    *,
    epoch: int,
    started_at: datetime,
    slot: SlotProgress,
    capture: CaptureThread,
    durable: bool,
    memory: MemoryBudget,
    trends: Trends,
) -> Progress:
    """Return the progress of the pipeline, and add its figures to ``trends``. For the supervisor's thread."""
    now, now_us, silent_s, outlook = time.monotonic(), time.time_ns() // 1000, capture.silent_s(), trends.outlook
    registry = supervisor.registry
    records = sorted(registry.tables.values(), key=lambda r: r.name)
    small_s = 2 * supervisor.config_ref.current.freshness_s
    unread = bytes_after(slot, capture.position.received_lsn, capture.position.acknowledged_lsn)
    delay = _stream_delay(trends.stream, slot, capture, now, now_us)
    delay_s = max(silent_s, delay.seconds)
    tables = tuple(
        _with_outlook(table_progress(r, registry, now_us, delay_s), outlook, small_s, known=delay.known)
        for r in records
    )
    outlook.keep(registry.tables)
    streaming = [t.catch_up for t in tables if _streams(t)]
    return Progress(
        pipeline=supervisor.config_ref.current.name,
        epoch=epoch,
        state=state,
        started_at=started_at,
        at=datetime.now(UTC),
        catch_up=latest([outlook.of_stream(now, unread), *streaming]),
        slot=slot,
        capture=capture_progress(capture, trends.rate.rate(now, capture.position.rows)),
        staging=StagingProgress(
            durable, registry.backlog.segments, registry.backlog.staged_bytes, supervisor.guard.free_bytes
        ),
        memory=MemoryProgress(memory.limit, memory.used, memory.waiting),
        guard=supervisor.guard.progress(),
        cuts=supervisor.lake_cuts.progress(),
        publication=PublicationProgress(
            fatal_progress(registry.membership.incomplete),
            fatal_progress(registry.membership.lent),
            registry.membership.waits,
            fatal_progress(registry.membership.trigger_lost),
        ),
        tables=tables,
        error=fatal_progress(registry.fatal),
    )


def _streams(table: TableProgress) -> bool:
    """Return True if the table's lag says when it will have caught up."""
    return table.lag_seconds is not None and not (table.suspended or table.is_parked)


def _stream_delay(stream: StreamDelay, slot: SlotProgress, capture: CaptureThread, now: float, now_us: int) -> Delay:
    position = capture.position
    last = position.witness if position.segments else None
    age_s = None if last is None else (now_us - last.commit_ts_us) / 1e6
    return stream.add(now, bytes_after(slot, position.staged_lsn, position.acknowledged_lsn), age_s)


def _with_outlook(table: TableProgress, outlook: Outlook, small_s: float, *, known: bool) -> TableProgress:
    lag_s = table.lag_seconds if known and _streams(table) else None
    batch = table.job_since if table.job == Job.APPLY else None
    batch_s = 0.0 if batch is None else (datetime.now(UTC) - batch).total_seconds()
    catch_up = outlook.of_table(table.id, time.monotonic(), lag_s, small_s, batch_s)
    return table if catch_up is None else replace(table, catch_up=catch_up)


def starting_progress(pipeline: str, slot: str, started_at: datetime) -> Progress:
    """Return the progress of a pipeline that has not connected to its source yet."""
    return Progress(
        pipeline=pipeline,
        epoch=0,
        state=PipelineState.STARTING,
        started_at=started_at,
        at=started_at,
        slot=SlotProgress(slot),
    )


def fatal_progress(error: LevadaError | None) -> ErrorProgress | None:
    """Return an error of the pipeline, not of a table, in the form that users see, or None without an error.

    It has no time of a retry and no command that retries a table: both are of tables.
    """
    if error is None:
        return None
    parked = park(error, 1, RetryLimits(), datetime.now(UTC))
    return replace(error_progress(parked), solution=error.hint, next_retry=None)


def _finished_before() -> CopyProgress:
    """Return the progress of a copy that an earlier process finished. Its size is not stored: no total."""
    return CopyProgress(percent=100.0, seconds_left=0.0)
