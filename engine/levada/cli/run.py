"""`levada run`: prints the progress of an engine in this process, and ends with the exit code of its outcome."""

from __future__ import annotations

import gc
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import levada.cli.allocator  # noqa: F401 - first, because it has no effect once pyarrow is loaded
from levada.cli.check import show_problems
from levada.cli.downloads import prepare
from levada.cli.exit_codes import Exit
from levada.cli.formatting import duration
from levada.cli.hints import runnable
from levada.cli.manifests import folder, read
from levada.cli.output import console, show_error, working
from levada.cli.report import Report, report
from levada.cli.signals import StopSignals
from levada.errors import InvalidManifest, NeedsOperator
from levada.logs import add_fields
from levada.printable import counted
from levada.runtime.host.approval import require_approval
from levada.runtime.host.engine import Engine
from levada.runtime.host.goals import caught_up
from levada.runtime.host.namespace_end import clean_up_with_namespace, own_namespace
from levada.runtime.host.outcomes import (
    CaughtUp,
    EngineObserver,
    Outcome,
    Refused,
    Stopped,
    Suspended,
    TablesErrored,
    TimedOut,
)
from levada.runtime.report.http import LOOPBACK
from levada.status import Progress, TableProgress

_COLLECT_AFTER: Final = 10_000
"""The number of new objects after which the garbage collection looks for cycles, of which an engine makes few."""


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of the command line.

    ``timeout_s`` counts from ``called_at``, a time of the monotonic clock. None means no limit.
    """

    manifest: Path
    until_caught_up: bool
    secrets: Path | None
    work_dir: Path | None
    host: str = LOOPBACK
    port: int = 0
    timeout_s: float | None = None
    called_at: float = 0.0
    debug: bool = False
    approve: bool = False


def run(options: RunOptions, signals: StopSignals) -> Exit:
    """Run the engine and return its exit code. Raise the error that ended its pipeline."""
    code = _run(options, signals)
    if signals.received is not None and (namespace := own_namespace()) is not None:
        manifests = read(options.manifest, options.secrets, options.work_dir)
        clean_up_with_namespace(namespace, manifests, secrets=options.secrets, work_dir=options.work_dir)
    return code


def _run(options: RunOptions, signals: StopSignals) -> Exit:
    manifests = read(options.manifest, options.secrets, options.work_dir)
    if not options.approve:
        work_dir = folder(options.manifest, manifests, options.work_dir)
        try:
            require_approval(manifests, secrets=options.secrets, work_dir=work_dir)
        except NeedsOperator as error:
            show_error(error, debug=options.debug)
            return Exit.PREFLIGHT
    if not prepare(manifests, lambda: signals.received is not None):
        stopped = Stopped(None)
        console().print(final_message(manifests.pipeline.metadata.name, stopped, options), markup=False)
        return exit_code(stopped, signals.received, options)
    engine = Engine(
        options.manifest,
        secrets=options.secrets,
        work_dir=options.work_dir,
        host=options.host,
        port=options.port,
        observer=_Printer(debug=options.debug),
    )
    signals.call(engine.stop)
    with ExitStack() as opened:
        try:
            opened.enter_context(engine)
        except InvalidManifest:
            raise
        except NeedsOperator as error:
            show_error(error, debug=options.debug)
            return Exit.PREFLIGHT
        _collect_rarely()
        add_fields(pipeline=engine.name)
        if engine.address is not None:
            console().print(f"{engine.name}: page at {engine.address}/", markup=False)
        outcome = engine.run(
            until=caught_up if options.until_caught_up else None,
            timeout_s=None if options.timeout_s is None else options.called_at + options.timeout_s - time.monotonic(),
        )
    if not isinstance(outcome, Refused):
        console().print(final_message(engine.name, outcome, options), markup=False)
    return exit_code(outcome, signals.received, options)


def _collect_rarely() -> None:
    """Let the garbage collection leave out what is there after the start, which stays.

    It had an eighth of the CPU of an engine that catches up.
    """
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER)


class _Printer(EngineObserver):
    """Prints the events of a run."""

    def __init__(self, *, debug: bool) -> None:
        self._debug = debug
        self._report: Report | None = None

    @contextmanager
    def step(self, description: str) -> Iterator[None]:
        """Show the step on a terminal."""
        with working(description):
            yield

    @contextmanager
    def running(self) -> Iterator[None]:
        """Show the display of the progress."""
        with report(console()) as self._report:
            yield

    def progress(self, progress: Progress) -> None:
        """Show the progress in the display."""
        add_fields(pipeline=progress.pipeline, epoch=progress.epoch)
        if self._report is not None:
            self._report.show(progress)

    def refused(self, refusal: Refused) -> None:
        """Print the problems that keep the pipeline from starting."""
        if refusal.error is not None:
            show_error(refusal.error, debug=self._debug)
        else:
            show_problems(refusal.problems)


def exit_code(outcome: Outcome, received: signal.Signals | None, options: RunOptions) -> Exit:
    """Return the exit code of an outcome. A clean stop by a signal is a success, unless a goal was set. Pure."""
    match outcome:
        case Refused():
            return Exit.PREFLIGHT
        case TimedOut():
            return Exit.TIMED_OUT
        case TablesErrored():
            return Exit.TABLE_ERRORED
        case Stopped() if options.until_caught_up:
            return Exit.INTERRUPTED if received is signal.SIGINT else Exit.TERMINATED
    return Exit.OK


def final_message(name: str, outcome: Outcome, options: RunOptions) -> str:
    """Return the last line of a run that ended cleanly. Pure."""
    match outcome:
        case Suspended():
            return f"{name}: suspended (spec.suspend: true)"
        case CaughtUp(progress):
            return f"{name}: caught up, {counted(len(progress.tables), 'table')}"
        case TablesErrored():
            names = ", ".join(str(t.table) for t in outcome.tables)
            return f"{name}: caught up except {names}. {_ways_out(outcome.tables)}"
        case TimedOut(None):
            return f"{name}: not started after {duration(options.timeout_s)}, stopped"
        case TimedOut():
            return f"{name}: not caught up after {duration(options.timeout_s)}, stopped"
        case Stopped(None):
            return f"{name}: stopped before it had started"
    return f"{name}: stopped"


def _ways_out(tables: Sequence[TableProgress]) -> str:
    """Return the commands for errored tables: a resync for those whose own hint has only that, else a retry. Pure."""
    solutions = {t: "" if t.error is None else t.error.solution for t in tables}
    resynced = [t for t, hint in solutions.items() if "levada resync" in hint and "levada retry" not in hint]
    retried = [t for t in tables if t not in resynced]
    ways = []
    if retried:
        ways.append("Resolve the cause, then: " + _command("retry", retried))
    if resynced:
        ways.append("To copy again: " + _command("resync", resynced))
    return ". ".join(ways)


def _command(verb: str, tables: Sequence[TableProgress]) -> str:
    return runnable(f"levada {verb} MANIFEST " + " ".join(t.table.argument for t in tables))
