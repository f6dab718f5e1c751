"""`levada run`: runs the engine in this process, until it is stopped or has caught up."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

from levada.cli.check import refused, show_problems
from levada.cli.exit_codes import Exit
from levada.cli.formatting import duration
from levada.cli.hints import runnable
from levada.cli.output import console, show_error, working
from levada.cli.pod import driver_starts
from levada.cli.report import Report, report
from levada.cli.signals import StopSignals
from levada.errors import InvalidManifest, NeedsOperator, Transient
from levada.runtime.host.access_token import access_token
from levada.runtime.host.assembly import assemble, destination_secret, pipeline_config
from levada.runtime.host.manifest_watcher import ManifestWatcher
from levada.runtime.host.secret_watcher import SecretWatcher, may_replace_pipeline
from levada.runtime.host.waiting import Interrupted, wait_for
from levada.runtime.host.work_dir import create_work_dir, locked_work_dir, published_address
from levada.runtime.pipeline import Pipeline
from levada.runtime.report.http import LOOPBACK, ProgressServer
from levada.runtime.source.preparation import check_source
from levada.spec import Manifests
from levada.status import Progress, RetryPolicy, TableProgress
from levada.stores import MemoryStorage

_log = logging.getLogger(__name__)

_POLL_S: Final = 0.25
_WATCH_S: Final = 1.0
_RETRY_S: Final = 2.0
_START_PATIENCE_S: Final = 10.0
"""Seconds that an interrupted start may take to end, so that it is closed in order.

A start that waits for the source for longer is abandoned.
"""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of the command line.

    ``deadline`` is a time of the monotonic clock. ``timeout_s`` is in seconds. None means no limit.
    """

    manifest: Path
    until_caught_up: bool
    secrets: Path | None
    work_dir: Path
    host: str = LOOPBACK
    port: int = 0
    timeout_s: float | None = None
    deadline: float | None = None
    debug: bool = False


def run(manifests: Manifests, options: RunOptions, signals: StopSignals) -> Exit:
    """Run the pipeline and return its exit code. Raise the error that ended it."""
    if manifests.pipeline.spec.suspend:
        console().print(suspended_message(manifests), markup=False)
        return Exit.OK
    with ExitStack() as held:
        try:
            create_work_dir(options.work_dir)
            held.enter_context(locked_work_dir(options.work_dir))
            running = _Run(manifests, options, signals)
            held.enter_context(running.server)
            held.enter_context(published_address(options.work_dir, running.server.address))
        except NeedsOperator as error:
            return refusal(error, options)
        _log.info("progress at %s/v1/progress", running.server.address)
        try:
            return running.run()
        except Interrupted:
            end = Exit.TIMED_OUT if signals.received is None else ended_by(signals.received, options)
            console().print(interrupted_message(end, manifests, options), markup=False)
            return end


def refusal(error: NeedsOperator, options: RunOptions) -> Exit:
    """Print the error that kept the pipeline from starting. Raise InvalidManifest, which has its own exit code."""
    if isinstance(error, InvalidManifest):
        raise error
    show_error(error, debug=options.debug)
    return Exit.PREFLIGHT


class _Run:
    """One `levada run`. It replaces its pipeline by a new one when the destination's Secret changes."""

    def __init__(self, manifests: Manifests, options: RunOptions, signals: StopSignals) -> None:
        self._options = options
        self._signals = signals
        self._watcher = ManifestWatcher(options.manifest, manifests)
        self._memory = MemoryStorage()
        self._pipeline: Pipeline | None = None
        self._restarting = False
        self._refusal = ""
        self.server = ProgressServer(
            self._progress,
            host=options.host,
            port=options.port,
            progress_deadline_s=manifests.pipeline.spec.health.progress_deadline_seconds,
            token=access_token(manifests, options.secrets),
        )

    def run(self) -> Exit:
        """Run until the end.

        In a pod, a start that fails like the previous one is repeated and does not end the process. Raise `Interrupted`
        if a signal or the deadline comes before the first pipeline has started.
        """
        options = self._options
        starts = driver_starts(options.manifest, options.secrets, options.work_dir, self._is_over)
        while True:
            if starts is not None:
                starts.begin()
            end = self._start()
            if end is not Exit.PREFLIGHT or starts is None or not starts.may_try_again(self._refusal):
                return end
            if self._is_over():
                raise Interrupted
            for _ in range(2):  # A changed manifest is applied when two checks have found the same content.
                self._watcher.poll(lambda _: None)

    def _start(self) -> Exit:
        try:
            return self._run()
        except NeedsOperator as error:
            if self._pipeline is not None or self._restarting:
                # Something may have changed.
                raise
            self._refusal = str(error)
            return refusal(error, self._options)

    def _run(self) -> Exit:
        """Check the source, then run pipelines until the end."""
        options, manifests = self._options, self._watcher.running
        config = pipeline_config(manifests, secrets=options.secrets, work_dir=options.work_dir)
        problems = self._wait_for("checking the source", lambda: check_source(config))
        if refused(problems):
            show_problems(problems)
            self._refusal = "\n".join(f"{p.message} [{p.code}]" for p in problems)
            return Exit.PREFLIGHT
        while (end := self._run_pipeline()) is None:
            pass
        return end

    def _wait_for(self, what: str, work: Callable[[], T], *, patience_s: float = 0.0) -> T:
        """Run ``work`` with a message on the terminal. Raise `Interrupted` if a signal or the deadline comes first."""
        _log.info("%s: %s", self._watcher.running.pipeline.metadata.name, what)
        with working(what):
            return wait_for(work, self._is_over, patience_s=patience_s)

    def _is_over(self) -> bool:
        deadline = self._options.deadline
        return self._signals.received is not None or (deadline is not None and time.monotonic() > deadline)

    def _run_pipeline(self) -> Exit | None:
        """Run one pipeline until the end. Return None if a new one must take its place."""
        options, manifests, signals = self._options, self._watcher.running, self._signals
        # Watched before it is read, so that a change in between is noticed.
        secret = SecretWatcher(destination_secret(manifests, options.secrets))
        with self._wait_for(
            "starting Spark, which takes about 15 seconds",
            lambda: assemble(manifests, secrets=options.secrets, work_dir=options.work_dir, memory=self._memory),
        ) as parts:
            pipeline = self._pipeline = Pipeline(
                parts.config,
                store=parts.store,
                destination=parts.destination,
                spark=parts.spark,
            )
            try:
                self._wait_for("preparing the source", pipeline.start, patience_s=_START_PATIENCE_S)
            except NeedsOperator as error:
                show_error(error, debug=options.debug)
                self._pipeline, self._refusal = None, str(error)
                return Exit.PREFLIGHT
            except Transient as error:
                if not self._restarting or self._is_over():
                    raise
                # The destination may be unavailable for a moment. That must not end a process that ran before.
                _log.warning("cannot restart the pipeline yet, retrying in %.0f s: %s", _RETRY_S, error)
                self._pipeline = None
                time.sleep(_RETRY_S)
                return None
            with stopped(pipeline), report(console()) as shown:
                goal = caught_up_or_parked(pipeline.caught_up()) if options.until_caught_up else None
                leave = self._leave(pipeline, secret)
                end = follow(pipeline, shown, signals, goal, options.deadline, leave)
            if end is None and signals.received is None and not self._suspended:
                _log.info("the destination's Secret has changed: restarting the pipeline with it")
                self._pipeline, self._restarting = None, True
                return None
            if self._suspended:
                console().print(suspended_message(self._watcher.running), markup=False)
                return Exit.OK
            end = ended_by(signals.received, options) if end is None else end
            console().print(final_message(end, pipeline.progress(), options), markup=False)
            return end

    @property
    def _suspended(self) -> bool:
        return self._watcher.running.pipeline.spec.suspend

    def _progress(self) -> Progress | None:
        pipeline = self._pipeline
        return None if pipeline is None else replace(pipeline.progress(), manifest=self._watcher.progress)

    def _leave(self, pipeline: Pipeline, secret: SecretWatcher) -> Callable[[], bool]:
        """Return a function that checks the manifest and the Secret once a second.

        The function applies a changed manifest. It returns True once the pipeline is suspended or must be restarted.
        """
        next_check = 0.0

        def check() -> bool:
            nonlocal next_check
            if time.monotonic() < next_check:
                return False
            next_check = time.monotonic() + _WATCH_S
            self._watcher.poll(lambda manifests: self._reconfigure(manifests, pipeline))
            return self._suspended or (secret.changed() and may_replace_pipeline(pipeline.progress()))

        return check

    def _reconfigure(self, manifests: Manifests, pipeline: Pipeline) -> None:
        if not manifests.pipeline.spec.suspend:
            options = self._options
            pipeline.reconfigure(pipeline_config(manifests, secrets=options.secrets, work_dir=options.work_dir))
            self.server.set_progress_deadline(manifests.pipeline.spec.health.progress_deadline_seconds)


def follow(
    pipeline: Pipeline,
    shown: Report,
    signals: StopSignals,
    goal: Callable[[Progress], Exit | None] | None,
    deadline: float | None,
    leave: Callable[[], bool] = lambda: False,
) -> Exit | None:
    """Show progress until the goal is reached or the deadline, in monotonic seconds, has passed.

    Return None after a signal, or when ``leave`` returns True.
    """
    while True:
        if leave():
            return None
        progress = pipeline.progress()
        shown.show(progress)
        end = goal(progress) if goal is not None else None
        if end is not None:
            return end
        if signals.received is not None:
            return None
        if deadline is not None and time.monotonic() > deadline:
            return Exit.TIMED_OUT
        if pipeline.wait(_POLL_S):
            raise NeedsOperator("pipeline_stopped", f"pipeline {progress.pipeline} ended before its goal")


@contextmanager
def stopped(pipeline: Pipeline) -> Iterator[None]:
    """Stop the pipeline after the block, even if it raises."""
    try:
        yield
    finally:
        pipeline.stop()


def caught_up_or_parked(reached: Callable[[Progress], bool]) -> Callable[[Progress], Exit | None]:
    """Return a goal: every table that needs no manual retry has ``reached`` the goal.

    A parked table does not keep others from the goal, but makes the exit code `Exit.TABLE_ERRORED`. Suspended tables
    are ignored.
    """

    def outcome(progress: Progress) -> Exit | None:
        running = tuple(t for t in progress.tables if not t.suspended)
        able = tuple(t for t in running if not parked(t))
        if not progress.tables or (able and not reached(replace(progress, tables=able))):
            return None
        return Exit.OK if len(able) == len(running) else Exit.TABLE_ERRORED

    return outcome


def parked(table: TableProgress) -> bool:
    """Return True if the table needs a manual retry."""
    return table.error is not None and table.error.retry_policy != RetryPolicy.TIMED_RETRY


def ended_by(received: signal.Signals | None, options: RunOptions) -> Exit:
    """Return the exit code of a clean stop by a signal: success, unless a goal was set."""
    if not options.until_caught_up:
        return Exit.OK
    return Exit.INTERRUPTED if received is signal.SIGINT else Exit.TERMINATED


def suspended_message(manifests: Manifests) -> str:
    """Return the line that is printed for a suspended pipeline."""
    return f"{manifests.pipeline.metadata.name}: suspended (spec.suspend: true)"


def interrupted_message(end: Exit, manifests: Manifests, options: RunOptions) -> str:
    """Return the last line of a run that was interrupted before its pipeline had started."""
    name = manifests.pipeline.metadata.name
    if end is Exit.TIMED_OUT:
        return f"{name}: not started after {duration(options.timeout_s)}, stopped"
    return f"{name}: stopped before it had started"


def final_message(end: Exit, progress: Progress, options: RunOptions) -> str:
    """Return the last line of a run that ended cleanly."""
    match end:
        case Exit.OK if options.until_caught_up:
            return f"{progress.pipeline}: caught up, {len(progress.tables)} tables"
        case Exit.TABLE_ERRORED:
            errored = [t.table for t in progress.tables if parked(t)]
            command = runnable("levada retry MANIFEST " + " ".join(t.argument for t in errored))
            names = ", ".join(map(str, errored))
            return f"{progress.pipeline}: caught up except {names}. Resolve the cause, then: {command}"
        case Exit.TIMED_OUT:
            return f"{progress.pipeline}: not caught up after {duration(options.timeout_s)}, stopped"
    return f"{progress.pipeline}: stopped"
