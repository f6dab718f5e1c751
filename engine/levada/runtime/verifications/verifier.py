"""Verifies tables of a running pipeline, in the threads of the callers."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, TypeVar

from psycopg import sql

from levada.copy.guard import hold_table
from levada.destinations.interface import Destination, TableMode
from levada.destinations.verification import FixedTable
from levada.errors import LevadaError, NeedsOperator, Transient
from levada.postgres.catalog import PublishedTable, read_table_description
from levada.postgres.description import TableDescription
from levada.postgres.membership import read_publication_state
from levada.postgres.slots import ExportedSnapshot, copy_slot_name, export_snapshot
from levada.runtime.config import PipelineConfig
from levada.runtime.config_ref import ConfigRef
from levada.runtime.source.record import SourceRecord
from levada.runtime.tables.cut_state import Held
from levada.runtime.tables.publication_gaps import ROW_OPERATIONS, published_table
from levada.runtime.tables.requests import last_copy_settings, table_target
from levada.schema import ReplicatedTableSchema, TableTarget
from levada.stores.interface import PipelineStore
from levada.values import Lsn, QualifiedTable, SnapshotId, TableId
from levada.verify.report import TableReport
from levada.verify.source_table import SourceTable
from levada.verify.table import VerifyOptions, compare, scope_of

_log = logging.getLogger(__name__)

T = TypeVar("T")

_ATTEMPTS: Final = 5
_RETRY_S: Final = 2.0
_POLL_S: Final = 0.2
MAX_HELD_S: Final = 60.0
"""The longest time in seconds for which a table is held until its moment is reached.

PostgreSQL makes a snapshot only when all running transactions have ended. A long one would keep the table from applying
its changes for as long as it lasts.
"""
_AGAIN: Final = frozenset({"table_changed", "copy_yielded", "lock_timeout", "verify_not_reached", "source_unverified"})
"""Codes of errors after which a verification begins again with another snapshot."""


@dataclass(frozen=True, slots=True)
class Requests:
    """The requests to the supervisor, see `levada.runtime.stages.cuts`. They return immediately."""

    hold: Callable[[QualifiedTable, Callable[[Held | LevadaError], None]], None]
    cut: Callable[[TableId, Lsn, Callable[[LevadaError | None], None]], None]
    release: Callable[[TableId, bool], None]


@dataclass(frozen=True, slots=True)
class _Moment:
    """A table at one LSN: in the source's snapshot, and at the destination."""

    source: SourceTable
    schema: ReplicatedTableSchema
    target: TableTarget
    lake: FixedTable
    lsn: Lsn
    parked: bool


class _Release:
    """Releases a table once, at the latest after ``limit_s`` seconds."""

    def __init__(self, release: Callable[[], None], limit_s: float) -> None:
        self._release = release
        self._lock = threading.Lock()
        self.done = False
        self._timer = threading.Timer(limit_s, self.now)
        self._timer.daemon = True
        self._timer.start()

    def now(self) -> bool:
        """Release the table. Return False if it was released before."""
        with self._lock:
            first, self.done = not self.done, True
        if first:
            self._timer.cancel()
            self._release()
        return first


@dataclass(frozen=True, slots=True)
class Verifier:
    """Verifies tables of one pipeline. Thread-safe, but a table is verified by one thread at a time."""

    config_ref: ConfigRef
    store: PipelineStore
    destination: Destination
    requests: Requests
    stopping: threading.Event
    max_held_s: float = field(default=MAX_HELD_S)

    def run(self, name: QualifiedTable, options: VerifyOptions, cancelled: threading.Event) -> TableReport:
        """Compare one table with the source. Return the result.

        Raise NeedsOperator ``verify_unsupported`` for a table that cannot be compared, Transient ``verify_not_ready``
        before the end of its copy, and the errors of the source and of the destination. Raise Transient
        ``verify_cancelled`` if ``cancelled`` is set or the pipeline stops.
        """
        if not self.destination.capabilities.verifies:
            raise _unsupported(name, f"the destination {self.destination.name} has no checksums of its tables")
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return self._attempt(name, options, cancelled)
            except Transient as error:
                if error.code not in _AGAIN or attempt == _ATTEMPTS:
                    raise
                _log.info("verifying %s again: %s", name, error.message)
                if cancelled.wait(_RETRY_S):
                    raise _cancelled(name) from None
        raise AssertionError

    def _attempt(self, name: QualifiedTable, options: VerifyOptions, cancelled: threading.Event) -> TableReport:
        with self._moment(name, cancelled) as moment:
            known = self.store.get_table_schema(moment.schema.id, SnapshotId(max(0, moment.lsn - 1)))
            scope = scope_of(moment.schema, known or moment.schema, moment.lake)
            found = compare(moment.source, moment.lake, moment.schema, scope, moment.lsn, options)
            moment.source.guard.release()
            return found.report

    @contextmanager
    def _moment(self, name: QualifiedTable, cancelled: threading.Event) -> Iterator[_Moment]:
        config = self.config_ref.current
        self._await_transactions(config)
        held = self._hold(name, cancelled)
        release = _Release(lambda: self.requests.release(held.table, False), self.max_held_s)
        try:
            with export_snapshot(config.source, copy_slot_name(config.name, held.table)) as snapshot:
                if release.done:
                    raise self._not_reached(name)
                published, description, schema = self._read(snapshot, held.table, name)
                target = table_target(self.store, config, schema)
                self._require_comparable(target)
                with hold_table(config.source, published, schema, description) as guard:
                    if not held.parked:
                        self._cut(held.table, name, snapshot.lsn, cancelled)
                    lake = self.destination.fixed(target)
                    if lake is None:
                        raise _unsupported(name, "the destination does not have it")
                    if not release.now() and not held.parked:
                        # It was released before, so that it may have applied more.
                        raise self._not_reached(name)
                    source = SourceTable(
                        config.source,
                        snapshot,
                        published,
                        config.copy_connections,
                        config.on_unrepresentable,
                        guard,
                        cancelled,
                    )
                    yield _Moment(source, schema, target, lake, snapshot.lsn, held.parked)
        finally:
            release.now()

    def _hold(self, name: QualifiedTable, cancelled: threading.Event) -> Held:
        answers: queue.SimpleQueue[Held | LevadaError] = queue.SimpleQueue()
        self.requests.hold(name, answers.put)
        try:
            answer = self._wait(name, answers, cancelled, None)
        except LevadaError:
            # The supervisor may still grant it.
            threading.Thread(target=self._give_back, args=(answers,), name="levada-verify-end", daemon=True).start()
            raise
        if isinstance(answer, LevadaError):
            raise answer
        return answer

    def _give_back(self, answers: queue.SimpleQueue[Held | LevadaError]) -> None:
        while not self.stopping.is_set():
            try:
                answer = answers.get(timeout=_POLL_S)
            except queue.Empty:
                continue
            if isinstance(answer, Held):
                self.requests.release(answer.table, False)
            return

    def _cut(self, table: TableId, name: QualifiedTable, lsn: Lsn, cancelled: threading.Event) -> None:
        answers: queue.SimpleQueue[LevadaError | None] = queue.SimpleQueue()
        self.requests.cut(table, lsn, answers.put)
        error = self._wait(name, answers, cancelled, self.max_held_s)
        if error is not None:
            raise error

    def _wait(
        self, name: QualifiedTable, answers: queue.SimpleQueue[T], cancelled: threading.Event, limit_s: float | None
    ) -> T:
        waited = 0.0
        while not (cancelled.is_set() or self.stopping.is_set()):
            try:
                return answers.get(timeout=_POLL_S)
            except queue.Empty:
                waited += _POLL_S
                if limit_s is not None and waited >= limit_s:
                    raise self._not_reached(name) from None
        raise _cancelled(name)

    def _await_transactions(self, config: PipelineConfig) -> None:
        """Wait until the transactions that run now have ended, so that a held table need not wait for them."""
        with export_snapshot(config.source, copy_slot_name(config.name, TableId(0))):
            pass

    def _not_reached(self, name: QualifiedTable) -> Transient:
        return Transient(
            "verify_not_reached",
            f"{name} did not reach the moment of its verification in {self.max_held_s:.0f} s",
            hint="verify it when the pipeline is not far behind and no long transaction runs: levada status MANIFEST",
        )

    def _read(
        self, snapshot: ExportedSnapshot, table: TableId, name: QualifiedTable
    ) -> tuple[PublishedTable, TableDescription, ReplicatedTableSchema]:
        config = self.config_ref.current
        settings = last_copy_settings(self.store.get_table_controls(table))
        with config.source.connect(application="verify") as connection, connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(snapshot.name))
            SourceRecord(self.store).require_verified(connection)
            published = published_table(connection, config.publication.name, table, name)
            state = read_publication_state(connection, config.publication.name, [table])
            membership = state.members.get(table)
            if membership is not None and ROW_OPERATIONS.difference(membership.publication.operations):
                raise _unsupported(name, "its publication does not publish all of INSERT, UPDATE and DELETE")
            description = read_table_description(connection, table)
            schema = description.schema(
                columns=published.column_attnums,
                exclude=() if settings is None else settings.excluded_columns,
                policy=config.on_unrepresentable,
            )
        return published, description, schema

    def _require_comparable(self, target: TableTarget) -> None:
        if target.schema.key and self.destination.effective_mode(target) is TableMode.CHANGELOG:
            raise _unsupported(
                target.schema.name, "its mode is Changelog, which keeps every change and not only the last rows"
            )


def _unsupported(name: QualifiedTable, why: str) -> NeedsOperator:
    return NeedsOperator("verify_unsupported", f"{name} cannot be compared with the source: {why}")


def _cancelled(name: QualifiedTable) -> Transient:
    return Transient("verify_cancelled", f"the verification of {name} was cancelled")
