"""The ends of a run, without running anything."""

from __future__ import annotations

from dataclasses import replace

from tests.runtime import samples

from levada.runtime.host.goals import judge
from levada.runtime.host.outcomes import CaughtUp, Outcome, Stopped, TablesErrored, TimedOut
from levada.runtime.host.run import follow
from levada.status import Progress

ERRORED = samples.table("orders", phase="Errored", error=samples.error())
RETRYING = samples.table(
    "orders", phase="Errored", error=samples.error(retry_policy="TimedRetry", next_retry=samples.seconds(9))
)


def all_ready(progress: Progress) -> bool:
    """Return True for a progress that stands for a goal that is reached."""
    return progress.ready


def end(*tables: object) -> type[Outcome] | None:
    """Return the kind of outcome of a pipeline with these tables."""
    outcome = judge(samples.progress(*tables), all_ready)  # type: ignore[arg-type]  # tables
    return None if outcome is None else type(outcome)


def test_caught_up_is_success() -> None:
    """Every table has reached the goal."""
    assert end(samples.table()) is CaughtUp


def test_nothing_known_yet_is_no_success() -> None:
    """A pipeline that has not found its tables has reached nothing."""
    assert judge(replace(samples.progress(), tables=()), lambda _: True) is None


def test_a_parked_table_waits_for_the_others() -> None:
    """A table that needs a manual retry keeps no other from its goal, and decides the outcome."""
    copying = samples.table("payments", phase="DataSync")
    assert end(ERRORED, copying) is None
    assert end(ERRORED, samples.table("payments")) is TablesErrored
    assert end(ERRORED) is TablesErrored


def test_a_table_that_is_retried_is_waited_for() -> None:
    """An error that is retried is not the end."""
    assert end(RETRYING, samples.table("payments")) is None


def test_suspended_tables_have_no_goal() -> None:
    """The others decide the outcome."""
    assert end(samples.table(), samples.table("payments", phase="Init")) is None
    assert end(samples.table(), samples.table("payments", phase="Init", suspended=True)) is CaughtUp


class Idle:
    """A pipeline that runs and gets nowhere."""

    def progress(self) -> Progress:
        return samples.progress(samples.table(phase="DataSync"))

    def wait(self, timeout_s: float | None = None) -> bool:
        return False


def followed(*, stopping: bool = False, deadline: float | None = None) -> Outcome | None:
    """Return the end of following an idle pipeline."""
    return follow(Idle(), lambda: None, lambda p: judge(p, all_ready), lambda: stopping, deadline)  # type: ignore[arg-type]  # enough of one


def test_time_and_stops_end_the_wait() -> None:
    """Both outcomes have the progress so far."""
    progress = Idle().progress()
    assert followed(deadline=0.0) == TimedOut(progress)
    assert followed(stopping=True, deadline=0.0) == Stopped(progress)
