"""Requests to a pipeline for its tables, its cuts and the removal of what it has left behind."""

from __future__ import annotations

import threading
from collections.abc import Collection
from contextlib import suppress
from typing import TYPE_CHECKING

from levada.destinations.interface import Destination
from levada.errors import NeedsOperator, Transient
from levada.postgres.kept_sessions import SESSIONS
from levada.postgres.lag import current_wal_lsn
from levada.runtime.config import PipelineConfig
from levada.runtime.config_ref import ConfigRef
from levada.runtime.inbox import Ask, Inbox
from levada.runtime.replication import Replication
from levada.runtime.report.requests import ask, not_started
from levada.runtime.source.cleanup import remove_pipeline
from levada.runtime.source.requestable_tables import no_table_name, request_resync, request_retry
from levada.runtime.stages.messages import ActionsStored, LakeCutDropped, LakeCutWanted, ProgressWanted
from levada.runtime.tables.cut_rules import check_cut_name, require_cuts
from levada.status import CutProgress
from levada.stores.interface import PipelineStore
from levada.threads import runs_for
from levada.values import QualifiedTable
from levada.verify.table import VerifyOptions

if TYPE_CHECKING:
    from levada.runtime.erasures.eraser import ErasureOptions
    from levada.runtime.erasures.report import ErasureReport
    from levada.verify.report import TableReport


class PipelineRequests:
    """The part of `levada.runtime.pipeline.Pipeline` that takes requests. From any thread."""

    def __init__(self, config: PipelineConfig, store: PipelineStore, destination: Destination) -> None:
        self._config_ref = ConfigRef(config)
        self._store = store
        self._destination = destination
        self._inbox = Inbox()
        self._start_called = False
        self._ended = threading.Event()
        self._replication: Replication | None = None

    @property
    def config(self) -> PipelineConfig:
        """The current configuration."""
        return self._config_ref.current

    def retry(self, tables: Collection[QualifiedTable] | None = None) -> tuple[QualifiedTable, ...]:
        """Request a retry of these tables if they are errored, of every errored table if ``tables`` is None.

        Return the tables whose retry is requested. It begins now, or with the next start. Raise
        NeedsOperator ``unknown_table`` for a table that is not the pipeline's, and Transient ``engine_not_running`` for
        a pipeline that has ended.
        """
        self._load()
        return self._applied(request_retry(self.config, self._store, tables))

    def resync(self, tables: Collection[QualifiedTable] | None = None) -> tuple[QualifiedTable, ...]:
        """Request a new copy of these tables, or of all tables if ``tables`` is None. Return the tables.

        The copies begin now, or with the next start. Raise the errors of `retry`.
        """
        self._load()
        return self._applied(request_resync(self.config, self._store, tables))

    def cleanup(self, *, destination_tables: bool = False) -> tuple[str, ...]:
        """Remove the slot, the publication, the state and the staged changes of a pipeline that does not run.

        With ``destination_tables``, drop the tables at the destination too. Return a line for each step, and for what
        is kept because it may be another program's. Call it for an object that was not started, whose store and
        destination are closed then. It can be repeated. Raise NeedsOperator ``pipeline_already_started`` for an object
        that was started, ``not_the_owner`` if any part belongs to another Pipeline, and Transient ``slot_active`` while
        another process runs the pipeline. Nothing is removed then.
        """
        if self._start_called:
            raise NeedsOperator(
                "pipeline_already_started",
                f"this object of pipeline {self.config.name} was started, so its store is in use or closed",
                hint="stop it, and call cleanup() of another Pipeline object with the same configuration",
            )
        self._start_called = True
        try:
            return remove_pipeline(self.config, self._store, self._destination, drop_tables=destination_tables)
        finally:
            self._ended.set()
            self._store.close()

    def verify(
        self, table: QualifiedTable, options: VerifyOptions | None = None, cancelled: threading.Event | None = None
    ) -> TableReport:
        """Compare a table with the source at one LSN while the pipeline runs, and return the result.

        Call it from any thread, for a pipeline that was started. The table waits at that LSN for a moment, then applies
        changes again while it is compared. The progress has the outcome when it ends. See
        `levada.runtime.verifications.verifier.Verifier.run` for the errors.
        """
        if self._replication is None:
            raise not_started(self.config.name, "its tables cannot be verified")
        options, cancelled = options or VerifyOptions(), cancelled or threading.Event()
        _check_call(table, options, VerifyOptions, cancelled)
        try:
            return self._replication.verifier.run(table, options, cancelled)
        finally:
            # A supervisor that is busy for minutes keeps no one from the result.
            with suppress(Transient):
                ask(self._inbox, self.config, self._ended.is_set, ProgressWanted())

    def erase(
        self, table: QualifiedTable, options: ErasureOptions, cancelled: threading.Event | None = None
    ) -> ErasureReport:
        """Erase keys from a table, its former states and its files, from any thread. `Eraser.run` has the errors."""
        if self._replication is None:
            raise not_started(self.config.name, "nothing can be erased from its tables")
        from levada.runtime.erasures.eraser import ErasureOptions

        cancelled = cancelled or threading.Event()
        _check_call(table, options, ErasureOptions, cancelled)
        return self._replication.eraser.run(table, options, cancelled)

    def request_cut(self, name: str, *, partial: bool = False) -> None:
        """Request a cut of all tables with everything that is committed at the source now. `cuts` has its progress.

        With ``partial``, tables that cannot be part of it are left out. Call it from any thread after `start`. Raise
        NeedsOperator ``cut_name_invalid``, ``cut_exists``, ``cut_not_ready`` or ``cuts_unsupported``.
        """
        check_cut_name(name)
        require_cuts(self._destination)
        if self._replication is None:
            raise not_started(self.config.name, "it has no cuts")
        with SESSIONS.session(self.config.source, "cut") as connection:
            after = current_wal_lsn(connection)
        self._ask(LakeCutWanted(name, after, partial))

    def drop_cut(self, name: str) -> None:
        """Remove a cut from all tables, soon. Raise NeedsOperator ``cut_unknown`` if there is none of that name."""
        self._ask(LakeCutDropped(name))

    def cuts(self) -> tuple[CutProgress, ...]:
        """Return all cuts, the newest last. From any thread, without waiting."""
        replication = self._replication
        return () if replication is None else replication.supervisor.lake_cuts.published

    def _ask(self, request: Ask[None]) -> None:
        """Send a request to the supervisor. Raise its refusal."""
        if self._replication is None:
            raise not_started(self.config.name, "it has no cuts")
        ask(self._inbox, self.config, self._ended.is_set, request)

    def _applied(self, tables: tuple[QualifiedTable, ...]) -> tuple[QualifiedTable, ...]:
        """Let a running pipeline apply the stored requests. Return the tables."""
        if tables and self._replication is not None and not runs_for(self):
            ask(self._inbox, self.config, self._ended.is_set, ActionsStored())
        return tables

    def _load(self) -> None:
        """Fill the store's cache for a request before the start. Raise Transient for a pipeline that has ended."""
        if self._ended.is_set():
            raise Transient(
                "engine_not_running",
                f"pipeline {self.config.name} has ended, and takes no request",
                hint="make another Pipeline object, and send the request before or after its start",
            )
        if not self._start_called:
            self._store.load_table_replication_states()
            self._store.load_table_schemas()


def _check_call(table: object, options: object, kind: type, cancelled: object) -> None:
    """Check the arguments of a program without types, before anything waits.

    Raise NeedsOperator ``unknown_table`` for the table, and TypeError for another argument.
    """
    if not isinstance(table, QualifiedTable):
        raise no_table_name(table)
    if not isinstance(options, kind):
        raise TypeError(f"options must be {kind.__name__}, not {options!r}")
    if not isinstance(cancelled, threading.Event):
        raise TypeError(f"cancelled must be a threading.Event, not {cancelled!r}")
