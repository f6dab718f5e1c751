"""The engine as a Python object: everything that `levada run` does, without its output and its exit codes."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from levada.errors import NeedsOperator
from levada.runtime.erasures.eraser import ErasureOptions
from levada.runtime.erasures.report import ErasureReport
from levada.runtime.host.approval import copied_tables, waiting_tables
from levada.runtime.host.goals import Goal
from levada.runtime.host.last_error import LastError
from levada.runtime.host.manifest_file import command_words, file_digest, read_manifest_file, work_folder
from levada.runtime.host.manifest_watcher import ManifestWatcher
from levada.runtime.host.outcomes import EngineObserver, Outcome, Suspended
from levada.runtime.host.run import Run, RunParts, not_running
from levada.runtime.host.secret_folder import access_token
from levada.runtime.host.work_dir import create_work_dir, locked_work_dir, published_address
from levada.runtime.report.cuts_api import CutsApi
from levada.runtime.report.erasures import ErasuresApi
from levada.runtime.report.http import LOOPBACK, ProgressServer
from levada.runtime.report.verifications import Verifications
from levada.spec import Manifests
from levada.status import CutProgress, Progress
from levada.stores import MemoryStorage
from levada.values import PipelineOwner, QualifiedTable
from levada.verify.report import TableReport
from levada.verify.table import VerifyOptions

_log = logging.getLogger(__name__)


class Engine:
    """Runs the pipeline of a manifest, as `levada run` does.

    ``with Engine(Path("pipeline.yaml")) as engine: engine.run(until=caught_up)`` runs it. In the block the engine holds
    the lock of its work folder and serves its page, ``/livez``, ``/readyz``, ``/v1/progress``, ``/v1/history`` and
    ``/metrics`` on ``host`` and ``port``. Port 0 takes a free one. A manifest given as a path is followed while the
    pipeline runs. ``secrets`` is a folder with a folder for each Secret. ``work_dir`` is by default
    `.levada/<pipeline>` next to the manifest's file.

    A Spark session that the process has already is used and kept. Otherwise each run starts and stops its own.
    """

    def __init__(
        self,
        manifest: Path | Manifests,
        *,
        secrets: Path | None = None,
        work_dir: Path | None = None,
        host: str = LOOPBACK,
        port: int = 0,
        observer: EngineObserver | None = None,
    ) -> None:
        """Read the manifest. Raise InvalidManifest, which lists every problem found."""
        path = manifest if isinstance(manifest, Path) else None
        # Before the manifest: if the file changes in between, the digest is an older one until the watcher has read it.
        digest = "" if path is None else file_digest(path)
        manifests = read_manifest_file(manifest) if isinstance(manifest, Path) else manifest
        self._watcher = ManifestWatcher(path, manifests, self._waiting_tables, digest)
        self._secrets = secrets
        self._work_dir = work_folder(path, manifests, work_dir)
        self._listen = (host, port)
        self._observer = observer or EngineObserver()
        self._memory = MemoryStorage()
        self._held = ExitStack()
        self._server: ProgressServer | None = None
        self._run: Run | None = None
        self._running = threading.Lock()
        self._stopping = False

    def __repr__(self) -> str:
        progress = self.progress()
        return f"<Engine of pipeline {self.name}: {'not running' if progress is None else progress.state}>"

    @property
    def name(self) -> str:
        """The name of the pipeline."""
        return self._watcher.running.pipeline.metadata.name

    @property
    def address(self) -> str | None:
        """The base URL of the engine's port, or None while the port is closed."""
        return None if self._server is None else self._server.address

    def __enter__(self) -> Self:
        """Open the work folder and the port. For a suspended pipeline open nothing.

        Raise NeedsOperator ``engine_running`` if another process uses the work folder, ``work_dir_unusable`` if it
        cannot be written, ``port_taken`` if the address cannot be bound, and ``secret_missing`` if the Secret of the
        access token does not exist.
        """
        if self._suspended:
            return self
        spec, (host, port) = self._watcher.running.pipeline.spec, self._listen
        with ExitStack() as held:
            create_work_dir(self._work_dir)
            held.enter_context(locked_work_dir(self._work_dir))
            server = ProgressServer(
                self.progress,
                host=host,
                port=port,
                progress_deadline_s=spec.health.progress_deadline_seconds,
                token=access_token(self._watcher.running, self._secrets),
                verifications=Verifications(self.verify),
                erasures=ErasuresApi(self),
                cuts=CutsApi(self.cuts, self.request_cut, self.drop_cut),
                owner=self._owner,
            )
            held.enter_context(server)
            held.enter_context(published_address(self._work_dir, server.address))
            self._held = held.pop_all()
        self._server = server
        _log.info("progress at %s/v1/progress", server.address)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Stop the pipeline, wait for a run in another thread, then close the port and the work folder."""
        self.stop()
        with self._running:
            self._server = None
            self._held.close()

    def run(self, until: Goal | None = None, timeout_s: float | None = None) -> Outcome:
        """Run the pipeline until the goal ``until``, the end of ``timeout_s`` seconds, or a call of `stop`.

        Without a goal the pipeline runs until it is stopped or suspended. May be called again after it has returned.
        Raise the error that ends a started pipeline, InvalidManifest for a manifest that no engine can run, and
        NeedsOperator ``engine_not_open`` outside of the engine's ``with`` block.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._running:
            if self._suspended:
                return Suspended()
            if self._server is None:
                raise NeedsOperator(
                    "engine_not_open",
                    f"the engine of pipeline {self.name} has no lock on its work folder",
                    hint="call run() in the block of: with Engine(...) as engine",
                )
            parts = RunParts(
                self._watcher,
                self._secrets,
                self._work_dir,
                self._memory,
                self._observer,
                lambda: self._stopping,
                self._server.set_progress_deadline,
                command_words(self._watcher.path, self._secrets),
            )
            self._run = Run(parts, until, deadline)
            with LastError(self._work_dir, self.name).kept() as last:
                outcome = self._run.run()
                last.keep_refusal(outcome)
            return outcome

    def stop(self) -> None:
        """Make `run` stop the pipeline and return `Stopped`, also at later calls. Return without waiting.

        Call it from any thread or from a signal's handler.
        """
        # No Event: a handler that takes a lock which its own thread holds would wait forever.
        self._stopping = True

    def progress(self) -> Progress | None:
        """Return the newest progress, or None before there is a pipeline. From any thread, without waiting."""
        run = self._run
        return None if run is None else run.progress()

    def verify(self, table: QualifiedTable, options: VerifyOptions, cancelled: threading.Event) -> TableReport:
        """Compare a table with the source, as `levada.runtime.pipeline.Pipeline.verify` does. From any thread.

        Raise Transient ``engine_not_running`` while there is no running pipeline.
        """
        return self._required_run().running().verify(table, options, cancelled)

    def erase(self, table: QualifiedTable, options: ErasureOptions, cancelled: threading.Event) -> ErasureReport:
        """Erase keys from a table, as `levada.runtime.pipeline.Pipeline.erase` does. From any thread.

        Raise Transient ``engine_not_running`` while there is no running pipeline.
        """
        return self._required_run().running().erase(table, options, cancelled)

    def cuts(self) -> tuple[CutProgress, ...]:
        """Return all cuts of the tables, the newest last. From any thread, without waiting.

        Raise Transient ``engine_not_running`` while there is no running pipeline.
        """
        return self._required_run().running().cuts()

    def request_cut(self, name: str, partial: bool) -> None:
        """Request a cut of all tables, as `levada.runtime.pipeline.Pipeline.request_cut` does. From any thread."""
        self._required_run().running().request_cut(name, partial=partial)

    def drop_cut(self, name: str) -> None:
        """Drop a cut, as `levada.runtime.pipeline.Pipeline.drop_cut` does. From any thread."""
        self._required_run().running().drop_cut(name)

    def _owner(self) -> PipelineOwner | None:
        run = self._run
        return None if run is None else run.owner()

    def _required_run(self) -> Run:
        run = self._run
        if run is None:
            raise not_running(self.name)
        return run

    def _waiting_tables(self, running: Manifests, new: Manifests) -> frozenset[QualifiedTable]:
        return waiting_tables(running, new, copied_tables(self.progress()), secrets=self._secrets)

    @property
    def _suspended(self) -> bool:
        return self._watcher.running.pipeline.spec.suspend
