"""Whether a restart could help: something waits and does not move. Pure but for the snapshot it remembers.

Stuck is one of: WAL waits at the source and nothing at all moves; changes of a table wait for a batch, for upkeep, or
for a look at the destination, that does not end; the supervisor tells of nothing any more. A copy is not judged: how
long the source takes to hand out a snapshot, or a destination to index what was copied, tells nothing. An idle source
is healthy, however long it idles.
"""

from __future__ import annotations

import threading
from datetime import datetime, timedelta

from levada.runtime.progress import PipelineState, Progress


def unread_bytes(progress: Progress) -> int:
    """Return how much WAL the source has that was not received yet, as far as the last sample of the slot tells."""
    slot, capture = progress.slot, progress.capture
    if slot.lag_bytes is None:
        return 0
    if capture.received_lsn is None or capture.acknowledged_lsn is None:
        return slot.lag_bytes
    return max(0, slot.lag_bytes - max(0, capture.received_lsn - capture.acknowledged_lsn))


def moved(earlier: Progress, later: Progress) -> bool:
    """Tell whether anything came further: a position, a row, a copy, a phase."""
    return _positions(earlier) != _positions(later)


def stuck(since: Progress, now: Progress, deadline_s: float) -> str:
    """Return why the pipeline is stuck, empty if it is not.

    Stuck means: at the later snapshot WAL waits that was sampled since the earlier one, and nothing has moved for
    ``deadline_s`` between the two. An idle source is healthy, however long it idles.
    """
    still_s = (now.at - since.at).total_seconds()
    if still_s < deadline_s or moved(since, now) or not unread_bytes(now):
        return ""
    if now.slot.sampled_at is None or now.slot.sampled_at <= since.at:
        return ""
    return f"{unread_bytes(now)} bytes of WAL wait at the source and nothing has moved for {still_s:.0f} s"


def hung(progress: Progress, deadline_s: float) -> str:
    """Return which table's job does not end though changes wait for it, empty if none; a copy is not judged."""
    for table in progress.tables:
        if table.job is None or not table.job.judged or table.job_since is None or not table.pending_segments:
            continue
        seconds = (progress.at - table.job_since).total_seconds()
        if seconds >= deadline_s:
            waiting = f"{table.pending_rows} changes wait"
            return f"{table.job.value} of table {table.table} runs for {seconds:.0f} s, and {waiting}"
    return ""


class Liveness:
    """Remembers the last snapshot that was idle or had moved, and compares the next ones with it. Thread-safe.

    ``deadline_s`` may be changed at any time.
    """

    def __init__(self, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self._lock = threading.Lock()
        self._since: Progress | None = None

    def observe(self, progress: Progress | None, now: datetime) -> str:
        """Return why the process is not alive, empty if it is; None is a process that has not begun."""
        if progress is None or progress.state in (PipelineState.STARTING, PipelineState.STOPPING):
            return ""
        if progress.state in (PipelineState.FAILED, PipelineState.STOPPED):
            return f"the pipeline is {progress.state.value.lower()}"
        deadline_s = self.deadline_s
        if now - progress.at >= timedelta(seconds=deadline_s):
            return f"progress was last reported at {progress.at.isoformat(timespec='seconds')}"
        with self._lock:
            if self._since is None or not unread_bytes(progress) or moved(self._since, progress):
                self._since = progress
            return stuck(self._since, progress, deadline_s) or hung(progress, deadline_s)


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
