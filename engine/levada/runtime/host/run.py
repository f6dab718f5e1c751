"""One run of the engine: the start, the pipeline, and the files that are watched meanwhile."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

from levada import codes
from levada.errors import InvalidManifest, NeedsOperator, Transient
from levada.mask_keys import MaskKeyFiles
from levada.postgres.problems import Problem, Severity
from levada.printable import counted
from levada.runtime.config import PipelineConfig
from levada.runtime.host.approval import approved_value, require_key_approval
from levada.runtime.host.assembly import PipelineParts, assemble, destination_secret, pipeline_config
from levada.runtime.host.goals import Goal, judge
from levada.runtime.host.held_key import HeldKey
from levada.runtime.host.manifest_watcher import ManifestWatcher
from levada.runtime.host.masks import mask_key_folder
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
from levada.runtime.host.plugins import destination_class
from levada.runtime.host.pod import driver_starts
from levada.runtime.host.readiness import source_problems
from levada.runtime.host.secret_watcher import SecretWatcher, may_replace_pipeline
from levada.runtime.host.stored_state import copied_before
from levada.runtime.host.waiting import Interrupted, wait_for
from levada.runtime.pipeline import Pipeline
from levada.runtime.source.reconnect import reconnect_delay
from levada.runtime.tables.retries import SOURCE_AWAY
from levada.spec import Manifests
from levada.status import PipelineState, Progress
from levada.stores import MemoryStorage
from levada.values import PipelineOwner, QualifiedTable

_log = logging.getLogger(__name__)

_POLL_S: Final = 0.25
_WATCH_S: Final = 1.0
_WAITED_FOR: Final = SOURCE_AWAY | {
    codes.SOURCE_INTERNAL_ERROR,
    codes.STORE_LOCKED,
    codes.STORE_READ_ONLY,
    codes.STORE_UNREACHABLE,
}
"""Codes of a source or a store that is away, for which a start waits once tables were copied."""
_START_PATIENCE_S: Final = 10.0
"""Seconds that an interrupted start may take to end, so that it is closed in order.

A start that waits for the source for longer is abandoned.
"""

_MASKS: Final = 1
"""The place of the Secret with the key of masks among the watched ones."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RunParts:
    """The parts of the engine that a run needs.

    ``memory`` has the content of a store in memory between runs. ``stopping`` returns True once the run should end.
    ``set_progress_deadline`` receives the value of a changed manifest. ``command_words`` are the prefix and
    the arguments of `ManifestProgress`.
    """

    watcher: ManifestWatcher
    secrets: Path | None
    work_dir: Path
    memory: MemoryStorage
    observer: EngineObserver
    stopping: Callable[[], bool]
    set_progress_deadline: Callable[[float], None]
    command_words: tuple[str, str]


class Run:
    """One run. It replaces its pipeline by a new one when the destination's Secret changes.

    ``deadline`` is a time of the monotonic clock. None means no limit.
    """

    def __init__(self, parts: RunParts, goal: Goal | None, deadline: float | None) -> None:
        self._parts = parts
        self._goal = goal
        self._deadline = deadline
        self._pipeline: Pipeline | None = None
        self._restarting = False
        self._held = HeldKey()
        self._kept: tuple[MaskKeyFiles, SecretWatcher] | None = None
        """The keys of masks of the pipeline that was replaced for another reason than a changed key."""
        self._copied = False
        self._attempts = 0

    def progress(self) -> Progress | None:
        """Return the newest progress, or None before there is a pipeline. From any thread."""
        pipeline = self._pipeline
        return None if pipeline is None else self._progress_of(pipeline)

    def owner(self) -> PipelineOwner | None:
        """Return the Pipeline that the run acts for, or None before it has claimed its places. From any thread."""
        pipeline = self._pipeline
        return None if pipeline is None else pipeline.owner

    def running(self) -> Pipeline:
        """Return the running pipeline. From any thread. Raise Transient ``engine_not_running`` if there is none."""
        pipeline = self._pipeline
        if pipeline is None or pipeline.progress().state is not PipelineState.RUNNING:
            raise not_running(self._parts.watcher.running.pipeline.metadata.name)
        return pipeline

    def run(self) -> Outcome:
        """Run until the end. In a pod, a start that fails like the previous one is repeated."""
        parts = self._parts
        starts = driver_starts(parts.watcher.path, parts.secrets, parts.work_dir, self._is_over)
        try:
            while True:
                if starts is not None:
                    starts.begin()
                outcome = self._start()
                if isinstance(outcome, Refused):
                    parts.observer.refused(outcome)
                if not isinstance(outcome, Refused) or starts is None or not starts.may_try_again(str(outcome)):
                    return outcome
                if self._is_over():
                    raise Interrupted
                for _ in range(2):  # A changed manifest is applied when two checks have found the same content.
                    parts.watcher.poll(lambda _: None)
        except Interrupted:
            return Stopped(None) if parts.stopping() else TimedOut(None)

    def _start(self) -> Outcome:
        """Check the source, then run pipelines until the end. Raise the error of a pipeline that had started."""
        parts = self._parts
        try:
            config = pipeline_config(parts.watcher.running, secrets=parts.secrets, work_dir=parts.work_dir)
            while problems := self._source_errors(config):
                if not self._may_wait(problems, config):
                    return Refused(problems)
            while (end := self._run_pipeline()) is None:
                pass
        except InvalidManifest:
            raise
        except NeedsOperator as error:
            if self._pipeline is not None or self._restarting:
                # Something may have changed.
                raise
            return Refused.by(error)
        return end

    def _source_errors(self, config: PipelineConfig) -> tuple[Problem, ...]:
        """Return the problems of the source if there is an error among them, otherwise none."""
        manifests, secrets = self._parts.watcher.running, self._parts.secrets
        problems = self._wait_for("checking the source", lambda: source_problems(manifests, config, secrets))
        return problems if any(p.severity is Severity.ERROR for p in problems) else ()

    def _may_wait(self, problems: tuple[Problem, ...], config: PipelineConfig) -> bool:
        """Wait before the source is checked again, and return True. Return False if that does not help."""
        errors = [p for p in problems if p.severity is Severity.ERROR]
        if not all(p.passes for p in errors) or not self._copied_before(config):
            return False
        self._wait_to_start(errors[0])
        return True

    def _copied_before(self, config: PipelineConfig) -> bool:
        """Return True if the pipeline has copied tables, so that its start waits for a source that is away."""
        self._copied = self._copied or copied_before(self._parts.watcher.running, config, self._parts.secrets)
        return self._copied

    def _wait_to_start(self, reason: Problem) -> None:
        """Wait before the next attempt to start. Raise `Interrupted` if a stop or the deadline comes first."""
        self._attempts += 1
        delay_s = reconnect_delay(self._attempts)
        why = f"{reason.message} [{reason.code}]"
        _log.warning("cannot start the pipeline yet, next try in %.0f s: %s", delay_s, why)
        self._parts.observer.waits(reason)
        until = time.monotonic() + delay_s
        while time.monotonic() < until:
            if self._is_over():
                raise Interrupted
            time.sleep(_POLL_S)

    def _wait_for(
        self,
        step: str,
        work: Callable[[], T],
        *,
        patience_s: float = 0.0,
        discard: Callable[[T], object] = lambda _: None,
        interrupt: Callable[[], object] = lambda: None,
    ) -> T:
        """Run ``work`` as a step of the start. Raise `Interrupted` if a stop or the deadline comes first.

        ``discard`` closes the result of work that ends later, or after which the observer raises an error.
        ``interrupt`` is called once, when a stop or the deadline comes during the work.
        """
        if self._parts.stopping():
            raise Interrupted
        _log.info("%s: %s", self._parts.watcher.running.pipeline.metadata.name, step)
        during = self._parts.observer.step(step)
        return wait_for(work, self._is_over, patience_s=patience_s, discard=discard, interrupt=interrupt, during=during)

    def _is_over(self) -> bool:
        return self._parts.stopping() or (self._deadline is not None and time.monotonic() > self._deadline)

    def _run_pipeline(self) -> Outcome | None:
        """Run one pipeline until the end. Return None if a new one must take its place."""
        parts, manifests = self._parts, self._parts.watcher.running
        # Watched before it is read, so that a change in between is noticed.
        folders = destination_secret(manifests, parts.secrets), mask_key_folder(manifests, parts.secrets)
        secrets = tuple(map(SecretWatcher, folders))
        keys: MaskKeyFiles | None = None
        if self._kept is not None:
            keys, watcher = self._kept
            secrets = (*secrets[:_MASKS], watcher)
        spark = destination_class(manifests).capabilities.spark
        with self._wait_for(
            "starting Spark, which takes about 15 seconds" if spark else "opening the store and the destination",
            lambda: assemble(manifests, secrets=parts.secrets, work_dir=parts.work_dir, memory=parts.memory, keys=keys),
            discard=PipelineParts.close,
        ) as made:
            pipeline = self._pipeline = Pipeline(
                made.config,
                store=made.store,
                destination=made.destination,
                spark=made.spark,
            )
            try:
                self._require_key(manifests)
                self._wait_for(
                    "preparing the source",
                    pipeline.start,
                    patience_s=_START_PATIENCE_S,
                    discard=lambda _: pipeline.stop(),
                    interrupt=pipeline.request_stop,
                )
            except (NeedsOperator, Transient) as error:
                # The destination may be unavailable for a moment, or has not got the new keys yet. That must not end a
                # process that ran before. A start is no stricter than a running pipeline, which waits for its source.
                again = error.passes and self._restarting
                away = isinstance(error, Transient) and error.code in _WAITED_FOR
                if self._is_over() or not (again or (away and self._copied_before(made.config))):
                    if isinstance(error, Transient):
                        raise
                    self._pipeline = None
                    return Refused.by(error)
                self._pipeline = None
                self._wait_to_start(Problem(Severity.ERROR, error.code, error.message, error.hint))
                return None
            self._attempts = 0
            return self._follow(pipeline, secrets)

    def _follow(self, pipeline: Pipeline, secrets: Sequence[SecretWatcher]) -> Outcome | None:
        """Follow a started pipeline and stop it. Return None if a new one must take its place."""
        parts = self._parts
        with stopped(pipeline), parts.observer.running():
            reached = None if self._goal is None else self._goal(pipeline)
            end = follow(
                pipeline,
                lambda: parts.observer.progress(self._progress_of(pipeline)),
                (lambda _: None) if reached is None else (lambda progress: judge(progress, reached)),
                parts.stopping,
                self._deadline,
                self._leave(pipeline, secrets),
            )
        if self._suspended:
            return Suspended()
        if end is None and not parts.stopping():
            _log.info("the destination's Secret has changed: restarting the pipeline with it")
            self._pipeline, self._restarting = None, True
            return None
        return end or Stopped(self._progress_of(pipeline))

    @property
    def _suspended(self) -> bool:
        return self._parts.watcher.running.pipeline.spec.suspend

    def _progress_of(self, pipeline: Pipeline) -> Progress:
        prefix, arguments = self._parts.command_words
        manifest = replace(
            self._parts.watcher.progress, prefix=prefix, arguments=arguments, approval=self._held.request
        )
        return replace(pipeline.progress(), manifest=manifest)

    def _leave(self, pipeline: Pipeline, secrets: Sequence[SecretWatcher]) -> Callable[[], bool]:
        """Return a function that checks the manifest and the Secrets once a second.

        The function applies a changed manifest. It returns True once the pipeline is suspended or must be restarted.
        """
        next_check = 0.0

        def check() -> bool:
            nonlocal next_check
            if time.monotonic() < next_check:
                return False
            next_check = time.monotonic() + _WATCH_S
            self._parts.watcher.poll(lambda manifests: self._reconfigure(manifests, pipeline))
            # Each of them is asked, because a change counts in the second of two checks.
            changed = [secret.changed() for secret in secrets]
            changed[_MASKS] = changed[_MASKS] and not self._key_waits(secrets[_MASKS])
            if secrets[_MASKS].is_initial:
                self._held.set_back()
            # Another Secret that changes brings no key into effect that waits, or that is being written.
            self._kept = None if changed[_MASKS] else (pipeline.config.mask_keys, secrets[_MASKS])
            return self._suspended or (True in changed and may_replace_pipeline(pipeline.progress()))

        return check

    def _key_waits(self, secret: SecretWatcher) -> bool:
        """Return True if a changed key of masks waits for an approval, because it copies the masked tables again."""
        parts = self._parts
        return self._held.waits(
            secret,
            parts.watcher.running,
            secrets=parts.secrets,
            work_dir=parts.work_dir,
            approved=approved_value(parts.watcher.path),
        )

    def _require_key(self, manifests: Manifests) -> None:
        """Raise NeedsOperator ``approval_required`` if another key of masks waits for an approval in a cluster."""
        parts = self._parts
        if self._kept is None:
            approved = approved_value(parts.watcher.path)
            require_key_approval(manifests, secrets=parts.secrets, work_dir=parts.work_dir, approved=approved)

    def _reconfigure(self, manifests: Manifests, pipeline: Pipeline) -> None:
        parts, spec = self._parts, manifests.pipeline.spec
        if not spec.suspend:
            # A changed key takes effect in a new pipeline only.
            keys = pipeline.config.mask_keys
            config = pipeline_config(manifests, secrets=parts.secrets, work_dir=parts.work_dir, keys=keys)
            require_kept_table(config, pipeline.progress())
            pipeline.reconfigure(config)
            parts.set_progress_deadline(spec.health.progress_deadline_seconds)


def require_kept_table(config: PipelineConfig, progress: Progress) -> None:
    """Raise NeedsOperator ``no_tables_selected`` if a changed manifest selects none of the tables that run. Pure.

    Their states would be deleted, so that after a slip in ``spec.tables`` all of them were copied again.
    """
    names = [QualifiedTable(table.schema, table.name) for table in progress.tables]
    if names and not any(map(config.is_selected, names)):
        raise NeedsOperator(
            codes.NO_TABLES_SELECTED,
            f"spec.tables selects none of the {counted(len(names), 'table')} that are replicated",
            hint="correct spec.tables. If none of them is meant any more, stop the engine and start it again:"
            " levada plan MANIFEST shows what it would do",
        )


def not_running(pipeline: str) -> Transient:
    """Return the error of a request that needs a running pipeline."""
    return Transient(
        "engine_not_running",
        f"pipeline {pipeline} does not run yet, or has ended",
        hint="run the command again when levada status MANIFEST shows it as Running",
    )


def follow(
    pipeline: Pipeline,
    show: Callable[[], None],
    judged: Callable[[Progress], CaughtUp | TablesErrored | None],
    stopping: Callable[[], bool],
    deadline: float | None,
    leave: Callable[[], bool] = lambda: False,
) -> Outcome | None:
    """Watch a started pipeline until ``judged`` returns an outcome, a stop, or the deadline in monotonic seconds.

    Return None when ``leave`` returns True. Raise the error that ended the pipeline.
    """
    while True:
        if leave():
            return None
        progress = pipeline.progress()
        show()
        if (outcome := judged(progress)) is not None:
            return outcome
        if stopping():
            return Stopped(progress)
        if deadline is not None and time.monotonic() > deadline:
            return TimedOut(progress)
        if pipeline.wait(_POLL_S):
            raise NeedsOperator(
                "pipeline_stopped", f"pipeline {progress.pipeline} ended before its goal", hint="see its log"
            )


@contextmanager
def stopped(pipeline: Pipeline) -> Iterator[None]:
    """Stop the pipeline after the block, even if it raises."""
    try:
        yield
    finally:
        pipeline.stop()
