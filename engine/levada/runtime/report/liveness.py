"""Liveness: the decision whether the process is stuck, so that a restart could help.

A process is stuck in one of three cases:

- WAL waits at the source, and no position, row count or phase of the pipeline changes.
- Changes of a table wait for a batch, for maintenance, or for a read of the table's watermark that does not end.
- The supervisor publishes no progress.

A copy that takes long is no such case. The source may need long to export a snapshot, and the destination to index the
copied rows. An idle source is healthy for any length of time. The functions are pure. Only `Liveness` has state.
"""

from __future__ import annotations

import threading
from datetime import datetime, timedelta

from levada.runtime.job import Job
from levada.runtime.report.stream_delay import bytes_after
from levada.status import PipelineState, Progress
from levada.values import age_of


def unread_bytes(progress: Progress) -> int:
    """Return the bytes of WAL that were not received yet when the slot was last sampled, 0 before the first sample."""
    capture = progress.capture
    return bytes_after(progress.slot, capture.received_lsn, capture.acknowledged_lsn) or 0


def moved(earlier: Progress, later: Progress) -> bool:
    """Return True if a position, a row count, a copy, a phase or the epoch differs between the two snapshots."""
    return _positions(earlier) != _positions(later)


def stuck(since: Progress, now: Progress, deadline_s: float) -> str:
    """Return the reason why the pipeline is stuck between two snapshots, or an empty string if it is not.

    It is stuck if the snapshots are at least ``deadline_s`` apart, nothing moved between them, and WAL waits at the
    later one. The slot must have been sampled since the earlier one. Otherwise the WAL may have been received.
    """
    still_s = (now.at - since.at).total_seconds()
    if still_s < deadline_s or moved(since, now) or not unread_bytes(now):
        return ""
    if now.slot.sampled_at is None or now.slot.sampled_at <= since.at:
        return ""
    return f"{unread_bytes(now)} bytes of WAL wait at the source and nothing has moved for {still_s:.0f} s"


def hung(progress: Progress, deadline_s: float) -> str:
    """Return the reason if a table's job does not end while changes of the table wait, or an empty string.

    A job counts from ``deadline_s`` on. Copies and cuts never count, see `levada.runtime.job.Job.judged`.
    """
    for table in progress.tables:
        if not table.job or table.job_since is None or not table.pending_segments or not Job(table.job).judged:
            continue
        seconds = (progress.at - table.job_since).total_seconds()
        if seconds >= deadline_s:
            waiting = f"{table.pending_rows} changes wait"
            return f"{table.job} of table {table.table} has run for {seconds:.0f} s, and {waiting}"
    return ""


class Liveness:
    """Compares each snapshot with the last one that was idle or had moved. Thread-safe.

    ``deadline_s`` may be changed at any time.
    """

    def __init__(self, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self._lock = threading.Lock()
        self._since: Progress | None = None

    def observe(self, progress: Progress | None, now: datetime) -> str:
        """Return the reason why the process counts as stuck, or an empty string if it is alive.

        ``progress`` is None before there is a pipeline. A process that starts or stops is alive. One whose pipeline has
        ended, or whose snapshot is ``deadline_s`` old at ``now``, is not.
        """
        if progress is None or progress.state in (PipelineState.STARTING, PipelineState.STOPPING):
            return ""
        if progress.state in (PipelineState.FAILED, PipelineState.STOPPED):
            return f"the pipeline is {progress.state.lower()}"
        deadline_s = self.deadline_s
        if age_of(progress.at, now) >= timedelta(seconds=deadline_s):
            return f"progress was last reported at {progress.at.isoformat(timespec='seconds')}"
        with self._lock:
            since = self._since
            # A snapshot of the future was made while the clock was ahead.
            if since is None or since.at > progress.at or not unread_bytes(progress) or moved(since, progress):
                self._since = since = progress
            return stuck(since, progress, deadline_s) or hung(progress, deadline_s)


def _positions(progress: Progress) -> tuple[object, ...]:
    capture = progress.capture
    return (
        progress.epoch,
        capture.received_lsn,
        capture.staged_lsn,
        capture.acknowledged_lsn,
        capture.rows,
        tuple((t.id, t.phase, t.applied_lsn, t.rows_applied, t.copy and t.copy.rows) for t in progress.tables),
    )
