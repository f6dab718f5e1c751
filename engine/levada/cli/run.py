"""`levada run`: the engine in this process, until it is stopped or has caught up."""

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
from levada.cli.engine import announced, sole_user, work_dir_unusable
from levada.cli.exits import Exit
from levada.cli.figures import duration
from levada.cli.hints import runnable
from levada.cli.output import console, show_error, working
from levada.cli.pod import driver_starts
from levada.cli.report import Report, report
from levada.cli.signals import StopSignals
from levada.cli.waiting import Left, wait_for
from levada.errors import InvalidManifest, NeedsOperator, Transient
from levada.private import private_folder
from levada.runtime.host.access_token import access_token
from levada.runtime.host.assembly import build, destination_secret, pipeline_config
from levada.runtime.host.manifest_watcher import ManifestFollower
from levada.runtime.host.secret_watcher import SecretFollower, may_begin_anew
from levada.runtime.pipeline import Pipeline
from levada.runtime.progress import Progress, TableProgress
from levada.runtime.report.http import LOOPBACK, ProgressServer
from levada.runtime.source.preparation import check_source
from levada.spec import Manifests
from levada.stores import MemoryStorage
from levada.stores.phases import RetryPolicy

_log = logging.getLogger(__name__)

_POLL_S: Final = 0.25
_LOOK_S: Final = 1.0
_AGAIN_S: Final = 2.0
_START_PATIENCE_S: Final = 10.0
"""A start that is being made is let end, so that it can be stopped in order, unless the source keeps it waiting."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The command line. ``deadline`` is of the monotonic clock, ``timeout_s`` in seconds. None: no limit."""

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
    """Run the pipeline and return how it ended; raise the error that ended it."""
    if manifests.pipeline.spec.suspend:
        console().print(resting_words(manifests), markup=False)
        return Exit.OK
    with ExitStack() as held:
        try:
            make_folder(options.work_dir)
            held.enter_context(sole_user(options.work_dir))
            running = _Run(manifests, options, signals)
            held.enter_context(running.server)
            held.enter_context(announced(options.work_dir, running.server.address))
        except NeedsOperator as error:
            return refusal(error, options)
        _log.info("progress at %s/v1/progress", running.server.address)
        try:
            return running.run()
        except Left:
            end = Exit.TIMED_OUT if signals.received is None else ended_by(signals.received, options)
            console().print(left_words(end, manifests, options), markup=False)
            return end


def refusal(error: NeedsOperator, options: RunOptions) -> Exit:
    """Show what kept the pipeline from starting. A wrong manifest has an exit code of its own, so that is raised."""
    if isinstance(error, InvalidManifest):
        raise error
    show_error(error, debug=options.debug)
    return Exit.PREFLIGHT


class _Run:
    """One `levada run`: a pipeline, and another in its place whenever the destination's Secret has changed."""

    def __init__(self, manifests: Manifests, options: RunOptions, signals: StopSignals) -> None:
        self._options = options
        self._signals = signals
        self._follower = ManifestFollower(options.manifest, manifests)
        self._memory = MemoryStorage()
        self._pipeline: Pipeline | None = None
        self._renewing = False
        self._refusal = ""
        self.server = ProgressServer(
            self._progress,
            host=options.host,
            port=options.port,
            progress_deadline_s=manifests.pipeline.spec.health.progress_deadline_seconds,
            token=access_token(manifests, options.secrets),
        )

    def run(self) -> Exit:
        """Run until the end, which in a pod a refusal that is known is not. Raise `Left` before there is a pipeline."""
        options = self._options
        starts = driver_starts(options.manifest, options.secrets, options.work_dir, self._is_over)
        while True:
            if starts is not None:
                starts.begin()
            end = self._start()
            if end is not Exit.PREFLIGHT or starts is None or not starts.may_try_again(self._refusal):
                return end
            if self._is_over():
                raise Left
            for _ in range(2):  # a content is taken up when two looks have found it
                self._follower.look(lambda _: None)

    def _start(self) -> Exit:
        try:
            return self._run()
        except NeedsOperator as error:
            if self._pipeline is not None or self._renewing:
                # Something may have changed.
                raise
            self._refusal = str(error)
            return refusal(error, self._options)

    def _run(self) -> Exit:
        """Check the source, then run one pipeline after another until the end."""
        options, manifests = self._options, self._follower.running
        config = pipeline_config(manifests, secrets=options.secrets, work_dir=options.work_dir)
        problems = self._wait_for("checking the source", lambda: check_source(config))
        if refused(problems):
            show_problems(problems)
            self._refusal = "\n".join(f"{p.message} [{p.code}]" for p in problems)
            return Exit.PREFLIGHT
        while (end := self._until_renewal()) is None:
            pass
        return end

    def _wait_for(self, what: str, work: Callable[[], T], *, patience_s: float = 0.0) -> T:
        """Do what takes a while, and say so; raise `Left` when a signal or the deadline comes first."""
        _log.info("%s: %s", self._follower.running.pipeline.metadata.name, what)
        with working(what):
            return wait_for(work, self._is_over, patience_s=patience_s)

    def _is_over(self) -> bool:
        deadline = self._options.deadline
        return self._signals.received is not None or (deadline is not None and time.monotonic() > deadline)

    def _until_renewal(self) -> Exit | None:
        """Run until the end; return None when another pipeline takes this one's place."""
        options, manifests, signals = self._options, self._follower.running, self._signals
        # Looked at before it is read: what comes in between is a change.
        secret = SecretFollower(destination_secret(manifests, options.secrets))
        with self._wait_for(
            "starting Spark, which takes about 15 seconds",
            lambda: build(manifests, secrets=options.secrets, work_dir=options.work_dir, memory=self._memory),
        ) as parts:
            pipeline = self._pipeline = Pipeline(
                parts.config,
                store=parts.store,
                destination=parts.destination,
                told=parts.told,
                spark=parts.spark,
                source=parts.source,
            )
            try:
                self._wait_for("preparing the source", pipeline.start, patience_s=_START_PATIENCE_S)
            except NeedsOperator as error:
                show_error(error, debug=options.debug)
                self._pipeline, self._refusal = None, str(error)
                return Exit.PREFLIGHT
            except Transient as error:
                if not self._renewing or self._is_over():
                    raise
                # The lake may be away just now: what ran before must not end by that.
                _log.warning("cannot begin anew yet, tried again in %.0f s: %s", _AGAIN_S, error)
                self._pipeline = None
                time.sleep(_AGAIN_S)
                return None
            with stopped(pipeline), report(console()) as shown:
                goal = caught_up_or_parked(pipeline.caught_up()) if options.until_caught_up else None
                leave = self._leave(pipeline, secret)
                end = follow(pipeline, shown, signals, goal, options.deadline, leave)
            if end is None and signals.received is None and not self._resting:
                _log.info("the destination's Secret has changed: beginning anew with it")
                self._pipeline, self._renewing = None, True
                return None
            if self._resting:
                console().print(resting_words(self._follower.running), markup=False)
                return Exit.OK
            end = ended_by(signals.received, options) if end is None else end
            console().print(closing_words(end, pipeline.progress(), options), markup=False)
            return end

    @property
    def _resting(self) -> bool:
        return self._follower.running.pipeline.spec.suspend

    def _progress(self) -> Progress | None:
        pipeline = self._pipeline
        return None if pipeline is None else replace(pipeline.progress(), manifest=self._follower.progress)

    def _leave(self, pipeline: Pipeline, secret: SecretFollower) -> Callable[[], bool]:
        """Return what looks once a second at the manifest, hands on what has changed, and at the Secret.

        It is True once the pipeline is to rest, or to be made anew.
        """
        next_look = 0.0

        def look() -> bool:
            nonlocal next_look
            if time.monotonic() < next_look:
                return False
            next_look = time.monotonic() + _LOOK_S
            self._follower.look(lambda manifests: self._take_up(manifests, pipeline))
            return self._resting or (secret.changed() and may_begin_anew(pipeline.progress()))

        return look

    def _take_up(self, manifests: Manifests, pipeline: Pipeline) -> None:
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
    """Show progress until the goal is reached or the deadline (monotonic seconds) is over.

    Return None when a signal came, or when ``leave`` says so.
    """
    while True:
        if leave():
            return None
        progress = pipeline.progress()
        shown.show(progress.to_json())
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
    """Stop the pipeline after the block, whichever way it is left."""
    try:
        yield
    finally:
        pipeline.stop()


def caught_up_or_parked(reached: Callable[[Progress], bool]) -> Callable[[Progress], Exit | None]:
    """Return what tells that every table has ``reached`` the goal, but for those that only a person can bring back.

    One parked table keeps no other from its goal; it makes the end `Exit.TABLE_ERRORED`. Suspended tables have no goal.
    """

    def outcome(progress: Progress) -> Exit | None:
        running = tuple(t for t in progress.tables if not t.suspended)
        able = tuple(t for t in running if not parked(t))
        if not progress.tables or (able and not reached(replace(progress, tables=able))):
            return None
        return Exit.OK if len(able) == len(running) else Exit.TABLE_ERRORED

    return outcome


def parked(table: TableProgress) -> bool:
    """Tell whether the table waits for a person."""
    return table.error is not None and table.error.retry_policy != RetryPolicy.TIMED_RETRY


def ended_by(received: signal.Signals | None, options: RunOptions) -> Exit:
    """Return what a clean stop by a signal means: success, unless something was to be reached before."""
    if not options.until_caught_up:
        return Exit.OK
    return Exit.INTERRUPTED if received is signal.SIGINT else Exit.TERMINATED


def resting_words(manifests: Manifests) -> str:
    """Return the line of a pipeline that is not to run."""
    return f"{manifests.pipeline.metadata.name}: spec.suspend is true, so it rests"


def left_words(end: Exit, manifests: Manifests, options: RunOptions) -> str:
    """Return the last line of a run that was left before its pipeline had started."""
    name = manifests.pipeline.metadata.name
    if end is Exit.TIMED_OUT:
        return f"{name}: not started after {duration(options.timeout_s)}, stopped"
    return f"{name}: stopped before it had started"


def make_folder(work_dir: Path) -> None:
    """Make the work folder; raise NeedsOperator ``work_dir_unusable`` if that cannot be done."""
    try:
        private_folder(work_dir)
    except OSError as error:
        raise work_dir_unusable(work_dir, f"made: {error.strerror}") from None


def closing_words(end: Exit, progress: Progress, options: RunOptions) -> str:
    """Return the last line of a run that ended cleanly."""
    match end:
        case Exit.OK if options.until_caught_up:
            return f"{progress.pipeline}: caught up, {len(progress.tables)} tables"
        case Exit.TABLE_ERRORED:
            errored = [t.table for t in progress.tables if parked(t)]
            command = runnable("levada retry MANIFEST " + " ".join(t.argument for t in errored))
            names = ", ".join(map(str, errored))
            return f"{progress.pipeline}: caught up but for {names}. Resolve the cause, then: {command}"
        case Exit.TIMED_OUT:
            return f"{progress.pipeline}: not caught up after {duration(options.timeout_s)}, stopped"
    return f"{progress.pipeline}: stopped"
