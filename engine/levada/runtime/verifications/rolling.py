"""The rules of the comparison of tables range by range: which table is next, how many rows, and when. Pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from levada.runtime.config import ContinuousConfig, PipelineConfig
from levada.runtime.verifications.schedule import is_able, trails
from levada.status import PipelineState, Progress, ProofProgress, ResyncStep, TablePhase, TableProgress
from levada.values import age_of

RANGE_S: Final = 2.0
"""The seconds that one range should take at the source, whose snapshot is open for about that long."""
OVERHEAD_S: Final = 0.1
"""The seconds that count for the snapshot and the catalog, which each range reads."""
PATIENCE_S: Final = 60.0
"""The longest wait for open transactions. Requests wait for the range that is compared."""
FIRST_ROWS: Final = 50_000
FEWEST_ROWS: Final = 10_000
_GROWTH: Final = 4
RETRY: Final = timedelta(minutes=10)
"""The time after which a table is tried again that could not be compared."""


def next_table(progress: Progress, config: PipelineConfig, now: datetime) -> TableProgress | None:
    """Return the table of which a range is compared now, None if none is due.

    Only tables that are Ready are compared. Nothing is while a table is copied, resynced, or trails the source. A table
    that trails all the time would keep the others from their comparisons, so those that are overdue do not wait for it.
    The tables take turns, so that a large one does not keep the others from theirs.
    """
    chosen = [t for t in progress.tables if config.verify_of(t.table).continuous.every_s]
    if not chosen or progress.state != PipelineState.RUNNING:
        return None
    if rests_until(progress, config.verify.continuous, now) > now or any(map(_is_copied, progress.tables)):
        return None
    able = [t for t in chosen if is_able(t) and not (t.differs or config.table(t.table).suspended)]
    due = [t for t in able if _is_due(t.proof, config.verify_of(t.table).continuous, now)]
    if any(trails(t, config) for t in progress.tables):
        due = [t for t in due if not trails(t, config) and _is_overdue(t, progress, config, now)]
    return min(due, key=lambda t: (0.0 if t.proof is None else t.proof.at.timestamp(), t.table), default=None)


def rests_until(progress: Progress, continuous: ContinuousConfig, now: datetime) -> datetime:
    """Return the time until which nothing is compared, so that the source's load has the allowed share of the time.

    Comparisons of the future, by a clock that was ahead, count for nothing.
    """
    proofs = [t.proof for t in progress.tables if t.proof is not None and t.proof.at <= now]
    ends = (p.at + timedelta(seconds=rest_s(p.range_seconds, continuous)) for p in proofs)
    return max(ends, default=min(progress.started_at, now))


def rest_s(busy_s: float, continuous: ContinuousConfig) -> float:
    """Return the seconds to rest after the source was busy for so many."""
    return busy_s * (1 / continuous.source_load - 1)


def next_rows(last: ProofProgress | None, most: int) -> int:
    """Return the number of rows of the next range, at most ``most``, by the time of the last one at the source."""
    if last is None or not last.range_rows:
        return min(most, FIRST_ROWS)
    wanted = last.range_rows * RANGE_S / max(last.range_seconds, RANGE_S / _GROWTH)
    return round(min(most, max(FEWEST_ROWS, wanted)))


def begun(last: ProofProgress | None, now: datetime) -> ProofProgress:
    """Return the progress of a pass that begins now."""
    known = last or ProofProgress(at=now)
    return replace(known, began=now, rows=0, source_seconds=0.0, at=now, problem="")


def advanced(
    now: ProofProgress, rows: int, busy_s: float, differences: int, at: datetime, *, ended: bool
) -> ProofProgress:
    """Return the progress after a range. If it was the last one of the pass, each row is as old as its begin."""
    return replace(
        now,
        oldest=now.began if ended else now.oldest,
        began=None if ended else now.began,
        rows=now.rows + rows,
        source_seconds=now.source_seconds + busy_s,
        differences=now.differences + differences,
        at=at,
        range_rows=rows or now.range_rows,
        range_seconds=busy_s,
        problem="",
    )


def _is_due(proof: ProofProgress | None, continuous: ContinuousConfig, now: datetime) -> bool:
    if proof is None or proof.at > now:
        return True
    if proof.problem:
        return age_of(proof.at, now) >= RETRY
    # Without a begin, the last pass began at the time of the oldest row.
    under_way = proof.began is not None or proof.oldest is None
    return under_way or age_of(proof.oldest or now, now) >= timedelta(seconds=continuous.every_s)


def _is_overdue(table: TableProgress, progress: Progress, config: PipelineConfig, now: datetime) -> bool:
    """Return True if a row of the table was not compared for two periods, or since the start for as long."""
    since = progress.started_at if table.proof is None or table.proof.oldest is None else table.proof.oldest
    return age_of(since, now) >= 2 * timedelta(seconds=config.verify_of(table.table).continuous.every_s)


def _is_copied(table: TableProgress) -> bool:
    copied = table.phase in (TablePhase.INIT, TablePhase.DATA_SYNC) and not table.suspended
    return copied or (table.resync is not None and table.resync.step != ResyncStep.GIVEN_UP)
