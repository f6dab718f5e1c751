"""What ends `levada run`, without running anything."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from tests.runtime import samples

from levada.cli.exit_codes import Exit
from levada.cli.report import LineReport
from levada.cli.run import RunOptions, caught_up_or_parked, ended_by, final_message, follow
from levada.cli.signals import StopSignals
from levada.status import Progress

ERRORED = samples.table("orders", phase="Errored", error=samples.error())
RETRYING = samples.table(
    "orders", phase="Errored", error=samples.error(retry_policy="TimedRetry", next_retry=samples.seconds(9))
)


def all_ready(progress: Progress) -> bool:
    """Stand in for what a pipeline calls caught up."""
    return progress.ready


def end(*tables: object) -> Exit | None:
    """Return the verdict on a pipeline with these tables."""
    return caught_up_or_parked(all_ready)(samples.progress(*tables))  # type: ignore[arg-type]  # tables


def test_caught_up_is_success() -> None:
    """Every table has reached the goal."""
    assert end(samples.table()) is Exit.OK


def test_nothing_known_yet_is_no_success() -> None:
    """A pipeline that has not found its tables has reached nothing."""
    assert caught_up_or_parked(lambda _: True)(replace(samples.progress(), tables=())) is None


def test_a_parked_table_waits_for_the_others() -> None:
    """One table that only a person can mend keeps no other from its goal, and decides the exit code."""
    copying = samples.table("payments", phase="DataSync")
    assert end(ERRORED, copying) is None
    assert end(ERRORED, samples.table("payments")) is Exit.TABLE_ERRORED
    assert end(ERRORED) is Exit.TABLE_ERRORED


def test_a_table_that_is_retried_is_waited_for() -> None:
    """An error that mends itself is not the end."""
    assert end(RETRYING, samples.table("payments")) is None


def test_suspended_tables_have_no_goal() -> None:
    """They rest because somebody said so."""
    assert end(samples.table(), samples.table("payments", phase="Init")) is None
    assert end(samples.table(), samples.table("payments", phase="Init", suspended=True)) is Exit.OK


def options(*, until: bool) -> RunOptions:
    """Return what a command line would say."""
    return RunOptions(
        manifest=Path("pipeline.yaml"), until_caught_up=until, secrets=None, work_dir=Path(), timeout_s=90
    )


def test_signals_are_success_unless_there_was_a_goal() -> None:
    """Running until stopped is done when stopped; a goal that was not reached is not."""
    assert ended_by(signal.SIGTERM, options(until=False)) is Exit.OK
    assert ended_by(signal.SIGINT, options(until=False)) is Exit.OK
    assert ended_by(signal.SIGTERM, options(until=True)) == 143
    assert ended_by(signal.SIGINT, options(until=True)) == 130


def test_last_line() -> None:
    """It says which of the ends it was, and names what is errored."""
    progress = samples.progress(ERRORED, samples.table("payments"))
    assert final_message(Exit.OK, progress, options(until=True)) == "shop: caught up, 2 tables"
    assert "public.orders" in final_message(Exit.TABLE_ERRORED, progress, options(until=True))
    assert "after 1m 30s" in final_message(Exit.TIMED_OUT, progress, options(until=True))
    assert final_message(Exit.OK, progress, options(until=False)) == "shop: stopped"


class Idle:
    """A pipeline that runs and gets nowhere."""

    def progress(self) -> Progress:
        return samples.progress(samples.table(phase="DataSync"))

    def wait(self, timeout_s: float | None = None) -> bool:
        return False


def followed(signals: StopSignals, deadline: float | None) -> Exit | None:
    """Return how following an idle pipeline ends."""
    shown = LineReport(Console(file=io.StringIO()))
    return follow(Idle(), shown, signals, caught_up_or_parked(all_ready), deadline)  # type: ignore[arg-type]  # enough of one


def test_time_and_signals_end_the_wait() -> None:
    """A deadline that is over is 4, a signal is for the caller to judge."""
    assert followed(StopSignals(), deadline=0.0) is Exit.TIMED_OUT
    stopped = StopSignals()
    stopped.received = signal.SIGTERM
    assert followed(stopped, deadline=None) is None


def test_first_signal_is_remembered_and_handlers_come_back() -> None:
    """A clean stop is asked for once; afterwards signals mean what they meant."""
    before = signal.getsignal(signal.SIGTERM)
    with StopSignals() as signals:
        assert signals.received is None
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.received is signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_second_signal_leaves_at_once(number: signal.Signals) -> None:
    """Even if the first was another, and whatever the process is doing."""
    program = (
        "import os, signal, time\n"
        "from levada.cli.signals import StopSignals\n"
        "with StopSignals():\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        f"    os.kill(os.getpid(), {int(number)})\n"
        "    time.sleep(60)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 128 + number
