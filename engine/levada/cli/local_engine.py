"""The engine on this machine: the one that runs, or one that runs for as long as a command needs it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from levada import codes
from levada.cli.command import WORK_DIR
from levada.cli.output import error_console, working
from levada.cli.signals import StopSignals
from levada.errors import LevadaError, NeedsOperator, Transient
from levada.postgres.problems import Problem, Severity
from levada.runtime.host.assembly import pipeline_config
from levada.runtime.host.engine import Engine
from levada.runtime.host.engine_api import EngineApi
from levada.runtime.host.manifest_file import work_folder
from levada.runtime.host.outcomes import EngineObserver, Refused, Suspended
from levada.runtime.host.owner_check import require_ownership
from levada.runtime.host.secret_folder import request_headers
from levada.runtime.host.stored_progress import slot_progress, stored_progress
from levada.runtime.host.work_dir import (
    engine_elsewhere,
    engine_is_starting,
    running_address,
    running_pid,
    running_progress,
)
from levada.runtime.report.http import REQUESTER
from levada.spec import Manifests
from levada.status import PipelineState

_POLL_S: Final = 0.3
_PATIENCE_S: Final = 15.0
"""Seconds for which a command's own engine may wait to start, from the first reason that it reports."""


@contextmanager
def local_engine(
    manifests: Manifests, manifest: Path, secrets: Path | None, work_dir: Path, signals: StopSignals, command: str
) -> Iterator[EngineApi]:
    """Yield the running engine of this machine. If none runs anywhere, run one during the block.

    Raise NeedsOperator ``not_the_owner`` if the manifest is not the owner's, ``engine_elsewhere`` if one runs on
    another machine, and ``pipeline_never_ran`` if there is neither a slot nor a table. ``command`` is the command to
    run there.
    """
    headers = request_headers(manifests, secrets)
    _wait_started(work_dir, headers, signals)
    owner = require_ownership(manifests, pipeline_config(manifests, secrets=secrets, work_dir=work_dir), secrets)
    found = running_engine(manifests, secrets, work_dir)
    if found is not None:
        # The work folder may be that of a Pipeline of the same name.
        yield replace(found, headers={**headers, REQUESTER: owner.uid})
        return
    slot = slot_progress(manifests, secrets=secrets)
    if slot.active:
        raise engine_elsewhere(slot.name, command)
    ran = slot.sampled_at is not None or manifests.pipeline.spec.suspend
    if not ran and not stored_progress(manifests, secrets=secrets, work_dir=work_dir).tables:
        # A start would make the slot, whose WAL then stays on the source's disk, and begin to copy every table.
        raise NeedsOperator(
            "pipeline_never_ran",
            f"pipeline {manifests.pipeline.metadata.name} has no slot and no tables yet",
            hint="levada run MANIFEST",
        )
    start = _Start()
    engine = Engine(manifest, secrets=secrets, work_dir=work_dir, observer=start)
    signals.call(engine.stop)
    with engine:
        run = _Run(engine, start)
        try:
            run.wait_running()
            assert engine.address is not None
            yield EngineApi(engine.address, headers)
        except NeedsOperator as error:
            raise _with_a_run(error) from error
        finally:
            engine.stop()
            run.thread.join()


def _wait_started(work_dir: Path, headers: Mapping[str, str], signals: StopSignals) -> None:
    """Wait while another process starts the engine of the work folder. Print which one, and where it says why."""
    if not engine_is_starting(work_dir, headers):
        return
    pid = running_pid(work_dir)
    shown = f"waiting for the engine in {work_dir}, which is starting: PID {pid}. Its log has what it waits for"
    error_console().print(shown, markup=False)
    with working("waiting for the engine, which is starting"):
        while signals.received is None and engine_is_starting(work_dir, headers):
            time.sleep(_POLL_S)


def running_engine(manifests: Manifests, secrets: Path | None, work_dir: Path) -> EngineApi | None:
    """Return the engine of the pipeline that runs in a work folder, None if none does."""
    headers, address = request_headers(manifests, secrets), running_address(work_dir)
    if address is None or running_progress(work_dir, manifests.pipeline.metadata.name, headers) is None:
        return None
    return EngineApi(address, headers)


def engine_runs(manifests: Manifests, manifest: Path, secrets: Path | None) -> bool:
    """Return True if an engine of the pipeline runs or starts here in its work folder, or streams anywhere.

    True as well if the source does not answer. The work folder is the default one, unless the environment has another.
    """
    given = os.environ.get(WORK_DIR)
    work_dir = work_folder(manifest, manifests, Path(given) if given else None)
    try:
        return (
            running_engine(manifests, secrets, work_dir) is not None
            or engine_is_starting(work_dir, request_headers(manifests, secrets))
            or slot_progress(manifests, secrets=secrets).active is True
        )
    except LevadaError:
        return True


def _with_a_run(error: NeedsOperator) -> NeedsOperator:
    """Return the error of an engine that ends with this command, with a hint that begins with a run. Pure."""
    if error.code != codes.CUT_NOT_READY:
        return error
    hint = f"no engine runs, so start one first: levada run MANIFEST. Then {error.hint}"
    return type(error)(error.code, error.message, hint=hint)


class _Start(EngineObserver):
    """The reasons for which a start waits, printed once each."""

    def __init__(self) -> None:
        self.reason: Problem | None = None
        """The newest reason, None before the first one."""
        self._begun = 0.0

    def waits(self, problem: Problem) -> None:
        """Print the reason, unless it is the same as before."""
        if self.reason is None:
            self._begun = time.monotonic()
        if self.reason != problem:
            self.reason = problem
            shown = f"the engine cannot start yet: {problem.message} [{problem.code}]"
            error_console().print(shown, markup=False)

    def require_patience(self) -> None:
        """Raise the reason as Transient once it has lasted too long for a command."""
        if self.reason is not None and time.monotonic() - self._begun > _PATIENCE_S:
            raise Transient(self.reason.code, self.reason.message, hint=self.reason.hint)


class _Run:
    """A run of the engine in a thread of its own."""

    def __init__(self, engine: Engine, start: _Start) -> None:
        self._engine = engine
        self._start = start
        self._error: BaseException | None = None
        self.thread = threading.Thread(target=self._work, name="levada-engine", daemon=True)
        self.thread.start()

    def _work(self) -> None:
        try:
            outcome = self._engine.run()
            if isinstance(outcome, Suspended):
                self._error = NeedsOperator(
                    "pipeline_suspended",
                    f"pipeline {self._engine.name} is suspended (spec.suspend: true), so no engine was started for it",
                    hint="set spec.suspend: false in the manifest, then run the command again",
                )
            elif isinstance(outcome, Refused):
                first = outcome.problems[0]
                self._error = outcome.error or NeedsOperator(first.code, first.message, hint=first.hint)
        except BaseException as error:
            self._error = error

    def wait_running(self) -> None:
        """Wait until the pipeline runs. Raise the error that ended the engine before, or that it waits for too long."""
        with working("starting the engine, because none runs"):
            while self.thread.is_alive():
                progress = self._engine.progress()
                if progress is not None and progress.state is PipelineState.RUNNING:
                    return
                if progress is not None and (error := progress.store.error or progress.error) is not None:
                    self._start.waits(Problem(Severity.ERROR, error.code, error.reason, error.solution))
                self._start.require_patience()
                time.sleep(_POLL_S)
        ended = self._error or NeedsOperator(
            "pipeline_stopped", f"pipeline {self._engine.name} was stopped", hint="see its log"
        )
        if isinstance(ended, LevadaError):
            raise ended
        raise RuntimeError("the engine ended with an unexpected error") from ended
