"""The exit code and the last line of `levada run`, without running anything."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.runtime import samples

from levada.cli.exit_codes import Exit
from levada.cli.run import RunOptions, exit_code, final_message
from levada.cli.signals import StopSignals
from levada.runtime.host.outcomes import CaughtUp, Refused, Stopped, Suspended, TablesErrored, TimedOut
from levada.status import TableProgress

PROGRESS = samples.progress(samples.table("orders", phase="Errored", error=samples.error()), samples.table("payments"))


def options(*, until: bool) -> RunOptions:
    """Return the options of a command line."""
    return RunOptions(
        manifest=Path("pipeline.yaml"), until_caught_up=until, secrets=None, work_dir=Path(), timeout_s=90
    )


def test_signals_are_success_unless_there_was_a_goal() -> None:
    """A run without a goal is complete when it is stopped."""
    stopped = Stopped(None)
    assert exit_code(stopped, signal.SIGTERM, options(until=False)) is Exit.OK
    assert exit_code(stopped, signal.SIGINT, options(until=False)) is Exit.OK
    assert exit_code(stopped, signal.SIGTERM, options(until=True)) == 143
    assert exit_code(stopped, signal.SIGINT, options(until=True)) == 130


def test_each_outcome_has_an_exit_code() -> None:
    """Scripts can distinguish the ends."""
    outcomes = (CaughtUp(PROGRESS), Suspended(), TablesErrored(PROGRESS), TimedOut(None), Refused(()))
    codes = [exit_code(outcome, None, options(until=True)) for outcome in outcomes]
    assert codes == [Exit.OK, Exit.OK, Exit.TABLE_ERRORED, Exit.TIMED_OUT, Exit.PREFLIGHT]


def test_last_line() -> None:
    """It has the end, and the names of errored tables."""

    def line(outcome: CaughtUp | TablesErrored | Suspended | TimedOut | Stopped) -> str:
        return final_message("shop", outcome, options(until=True))

    assert line(CaughtUp(PROGRESS)) == "shop: caught up, 2 tables"
    assert "public.orders" in line(TablesErrored(PROGRESS))
    assert line(TimedOut(PROGRESS)) == "shop: not caught up after 1m 30s, stopped"
    assert line(TimedOut(None)) == "shop: not started after 1m 30s, stopped"
    assert line(Stopped(PROGRESS)) == "shop: stopped"
    assert line(Stopped(None)) == "shop: stopped before it had started"
    assert line(Suspended()) == "shop: suspended (spec.suspend: true)"


def test_the_last_line_has_the_command_that_helps() -> None:
    """A table whose own hint is a resync is resynced, and the others are retried."""
    rewritten = samples.error(code="table_rewritten", solution="levada resync MANIFEST public.items")
    damaged = samples.error(code="key_changed", solution="copy the table again: levada resync MANIFEST public.lines")
    items, lines = (samples.table(n, phase="Errored", error=e) for n, e in (("items", rewritten), ("lines", damaged)))
    orders = samples.table("orders", phase="Errored", error=samples.error())

    def line(*tables: TableProgress) -> str:
        return final_message("shop", TablesErrored(samples.progress(*tables)), options(until=True))

    assert line(orders) == (
        "shop: caught up except public.orders. Resolve the cause, then: levada retry MANIFEST public.orders"
    )
    assert line(items, lines) == (
        "shop: caught up except public.items, public.lines."
        " To copy again: levada resync MANIFEST public.items public.lines"
    )
    assert line(items, orders).endswith(
        "Resolve the cause, then: levada retry MANIFEST public.orders."
        " To copy again: levada resync MANIFEST public.items"
    )


def test_first_signal_is_remembered_and_handlers_come_back() -> None:
    """It requests a clean stop, also of an engine that is made later. Afterwards signals have their former handlers."""
    before, stops = signal.getsignal(signal.SIGTERM), list[str]()
    with StopSignals() as signals:
        signals.call(lambda: stops.append("early"))
        assert (signals.received, stops) == (None, [])
        os.kill(os.getpid(), signal.SIGTERM)
        assert (signals.received, stops) == (signal.SIGTERM, ["early"])
        signals.call(lambda: stops.append("late"))
        assert stops == ["early", "late"]
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.sampled
@pytest.mark.usefixtures("own_process")
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
