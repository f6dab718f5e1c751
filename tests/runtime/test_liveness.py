"""Liveness: an idle source is healthy, an unread WAL without movement is not."""

from __future__ import annotations

import pytest
from tests.runtime import samples
from tests.runtime.samples import seconds

from levada.runtime.job import Job
from levada.runtime.report.liveness import Liveness, hung, moved, stuck, unread_bytes
from levada.status import PipelineState, Progress
from levada.values import Lsn

DEADLINE = 900.0


def at(
    second: float, *, lag: int | None = 0, received: int = 2000, sampled: float | None = None, **changes: object
) -> Progress:
    """Return a snapshot at that second after noon, its slot sampled then, with this lag."""
    return samples.progress(
        at=seconds(second),
        slot=samples.slot(lag_bytes=lag, sampled_at=seconds(second if sampled is None else sampled)),
        capture=samples.capture(received_lsn=Lsn(received)),
        **changes,
    )


def test_idle_source_is_never_stuck() -> None:
    """Without unread WAL nothing has to move."""
    assert stuck(at(0), at(100 * DEADLINE), DEADLINE) == ""


def test_unread_wal_without_movement_is_stuck() -> None:
    """After the deadline, not before."""
    assert stuck(at(0, lag=500), at(DEADLINE - 1, lag=500), DEADLINE) == ""
    assert "500 bytes" in stuck(at(0, lag=500), at(DEADLINE, lag=500), DEADLINE)


def test_movement_of_any_kind_is_life() -> None:
    """A received byte, a copied row, an applied change or a phase is enough."""
    still = at(0, lag=500)
    later = at(DEADLINE, lag=500)
    assert not moved(still, later)
    assert moved(still, at(DEADLINE, lag=500, received=2001))
    copying = samples.table(copy=samples.copying())
    further = samples.table(copy=samples.copying(rows=501))
    assert moved(samples.progress(copying), samples.progress(further))
    assert moved(samples.progress(), samples.progress(samples.table(rows_applied=101)))
    assert moved(samples.progress(), samples.progress(samples.table(phase="Catchup")))


def test_wal_that_was_received_is_not_unread() -> None:
    """On scratch staging an errored table holds back the acknowledgement: no restart would help."""
    assert unread_bytes(at(0, lag=500, received=2500)) == 0
    assert unread_bytes(at(0, lag=500, received=2100)) == 400
    assert unread_bytes(at(0, lag=None)) == 0


def test_an_old_sample_proves_nothing() -> None:
    """A source that cannot be reached has no new sample, and a restart would not bring it back."""
    assert stuck(at(0, lag=500), at(DEADLINE, lag=500, sampled=0), DEADLINE) == ""


def test_wal_after_a_long_idle_time_has_the_whole_deadline() -> None:
    """The clock starts with the last snapshot that was idle, not with the last that moved."""
    liveness = Liveness(DEADLINE)
    assert liveness.observe(at(0), seconds(0)) == ""
    assert liveness.observe(at(10_000), seconds(10_000)) == ""
    assert liveness.observe(at(10_010, lag=500), seconds(10_010)) == ""
    assert liveness.observe(at(10_000 + DEADLINE, lag=500), seconds(10_000 + DEADLINE)) != ""
    assert liveness.observe(at(10_901, lag=500, received=2100), seconds(10_901)) == ""


def applying(second: float, **changes: object) -> Progress:
    """Return a snapshot in which everything moves but one table's batch, begun at noon."""
    job = {"job": Job.APPLY, "job_since": seconds(0), "pending_segments": 1, "pending_rows": 5, **changes}
    return at(second, received=2000 + int(second), tables=(samples.table(), samples.table("payments", **job)))


def test_a_batch_that_does_not_end_is_death() -> None:
    """A batch without an end is fatal, though capture and other tables go on.

    A queued batch or idle maintenance is not.
    """
    assert hung(applying(DEADLINE - 1), DEADLINE) == ""
    assert "apply of table public.payments" in hung(applying(DEADLINE), DEADLINE)
    assert "maintain" in hung(applying(DEADLINE, job=Job.MAINTAIN), DEADLINE)
    assert "look" in hung(applying(DEADLINE, job=Job.READ_WATERMARK), DEADLINE)
    assert hung(applying(DEADLINE, job=Job.MAINTAIN, pending_segments=0), DEADLINE) == ""
    assert hung(applying(DEADLINE, job_since=None), DEADLINE) == ""
    assert hung(applying(DEADLINE, job=Job.COPY), DEADLINE) == ""
    assert "payments" in Liveness(DEADLINE).observe(applying(DEADLINE), seconds(DEADLINE))


@pytest.mark.parametrize("job", Job)
def test_every_job_but_those_that_index_a_copy_is_judged(job: Job) -> None:
    """A job of any other kind that does not end while changes wait for it is a reason to restart."""
    assert bool(hung(applying(DEADLINE, job=job), DEADLINE)) == (job not in (Job.COPY, Job.HOLD, Job.MOVE))


def test_the_deadline_can_change() -> None:
    """A later one gives the same snapshot more time."""
    liveness = Liveness(30.0)
    assert liveness.observe(at(0), seconds(31)) != ""
    liveness.deadline_s = 60.0
    assert liveness.observe(at(0), seconds(31)) == ""


def test_states_and_the_age_of_the_snapshot() -> None:
    """A failed pipeline and a thread that no longer reports are dead. One that starts or stops is not."""
    liveness = Liveness(DEADLINE)
    assert liveness.observe(None, seconds(0)) == ""
    assert liveness.observe(at(0, state=PipelineState.STARTING), seconds(5000)) == ""
    assert liveness.observe(at(0, state=PipelineState.STOPPING), seconds(5000)) == ""
    assert "failed" in liveness.observe(at(0, state=PipelineState.FAILED), seconds(0))
    assert "last reported" in liveness.observe(at(0), seconds(5000))
