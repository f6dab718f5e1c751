"""The job of a dedicated copy, in a process that shares only the store and the destination with the driver."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from levada import codes
from levada.copy.guard import GUARDS
from levada.copy.kept import KeptCopy
from levada.copy.tasks import TaskRunner
from levada.destinations.interface import Destination
from levada.errors import LevadaError, NeedsOperator, Transient
from levada.postgres.idle_connections import IdleReaders
from levada.runtime.config import PipelineConfig
from levada.runtime.config_ref import ConfigRef
from levada.runtime.copies.orders import Answer, read_answer, read_plan, read_ranges
from levada.runtime.copies.outcomes import Copied
from levada.runtime.copies.staged_changes import ChangesElsewhere
from levada.runtime.copies.table_copy import TableCopy
from levada.runtime.tables.kept_copies import parse_kept_copy
from levada.runtime.tables.retries import as_levada_error
from levada.status import CopyProgress
from levada.stores.interface import CopyOrder, PipelineStore
from levada.threads import marked_thread
from levada.values import QualifiedTable, TableId

if TYPE_CHECKING:
    from levada.copy.snapshot import SnapshotRows

_log = logging.getLogger(__name__)

_BEAT_S: Final = 5.0


class CopyJob:
    """Copies one table by the driver's order, which has the plan. With ``token`` only by the order of that token."""

    def __init__(
        self,
        config: PipelineConfig,
        store: PipelineStore,
        destination: Destination,
        tasks: TaskRunner,
        cancelled: threading.Event,
        token: str = "",
    ) -> None:
        self._config = config
        self._store = store
        self._destination = destination
        self._tasks = tasks
        self._cancelled = cancelled
        self._token = token
        self._rows: SnapshotRows | None = None

    def run(self, table: TableId, name: QualifiedTable) -> Copied | None:
        """Copy the table and answer the order. Return None without an unanswered order, or if the driver completes it.

        If the copy fails, answer with the error and raise it. Raise Transient ``copy_cancelled`` if the order was
        withdrawn or taken by another process.
        """
        order = open_order(self._store, table, self._token)
        if order is None:
            return None
        self._store.join(order.epoch)
        ranges = read_ranges(order)
        taken = Answer(read_answer(order).beat + 1, kept=ranges.kept)
        mine = replace(order, worker=uuid.uuid4().hex, answer=taken.to_text())
        if not self._store.change_copy_order(table, order, mine):
            return None
        _log.info("copying %s for the driver with epoch %d", name, order.epoch)
        answers = _Answers(self._store, table, mine, self._cancelled, self._progress)
        with answers.beating(), IdleReaders(self._config.source, GUARDS) as sessions:
            copier = TableCopy(
                ConfigRef(self._config),
                self._store,
                self._destination,
                self._tasks,
                order.epoch,
                sessions,
                require_order=lambda: self._require_order(table, name, mine),
                changes=ChangesElsewhere(),
                kept_copies=answers,
            )
            try:
                self._load()
                copied = copier.run(table, name, read_plan(order), self._cancelled, self._started, ranges.since)
            except BaseException as error:
                if isinstance(error, LevadaError) and error.code == codes.COPY_RANGES_FINISHED:
                    _log.info("%s", error.message)
                    answers.end(Answer(progress=self._progress(), ranges_finished=True), name)
                    return None
                if not self._cancelled.is_set():
                    answers.end(Answer(error=as_levada_error(error)))
                raise
            answers.end(Answer(progress=self._progress(), lsn=copied.lsn, storage=copied.storage), name)
            return copied

    def _progress(self) -> CopyProgress | None:
        return None if self._rows is None else self._rows.progress()

    def _started(self, rows: SnapshotRows) -> None:
        self._rows = rows

    def _require_order(self, table: TableId, name: QualifiedTable, mine: CopyOrder) -> None:
        """Raise Transient ``copy_cancelled`` unless this process still has the order.

        The heartbeat finds that too, but only later, and after a pause of this process too late.
        """
        now = self._store.get_copy_order(table)
        if now is None or (now.token, now.worker) != (mine.token, mine.worker):
            self._cancelled.set()
            raise Transient("copy_cancelled", f"the copy of {name} was cancelled")

    def _load(self) -> None:
        """Load from the store what the driver has stored."""
        self._store.load_table_schemas()
        self._store.load_table_controls()
        self._store.load_fingerprints()


class _Answers:
    """The answers to one order, with the record of the finished ranges. Thread-safe.

    A heartbeat writes the progress every few seconds, and sets ``cancelled`` once the order is not this process's.
    """

    def __init__(
        self,
        store: PipelineStore,
        table: TableId,
        mine: CopyOrder,
        cancelled: threading.Event,
        progress: Callable[[], CopyProgress | None],
    ) -> None:
        self._store = store
        self._table = table
        self._last = mine
        self._cancelled = cancelled
        self._progress = progress
        self._kept = read_answer(mine).kept
        self._lock = threading.Lock()
        self._ended = threading.Event()

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Write heartbeats during the block."""
        thread = marked_thread(self._beat, "levada-copy-beat")
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def end(self, answer: Answer, name: QualifiedTable | None = None) -> None:
        """Write the final answer, which no heartbeat overwrites.

        Raise NeedsOperator ``copy_superseded`` if the table ``name`` is copied, but its order was withdrawn.
        """
        with self._lock:
            self._ended.set()
            written = self._write(answer)
        if not written and name is not None:
            raise NeedsOperator(
                "copy_superseded",
                f"the copy of {name} is complete, but the driver has cancelled it, or has ordered another one",
            )

    def get(self, table: TableId) -> KeptCopy | None:
        """Return the record of the earlier attempts."""
        return parse_kept_copy(table, self._kept)

    def put(self, table: TableId, kept: KeptCopy | None) -> None:
        """Write the record. Raise Transient ``copy_cancelled`` if the order was withdrawn or taken."""
        with self._lock:
            before, self._kept = self._kept, "" if kept is None else kept.to_text()
            try:
                written = self._write(Answer(read_answer(self._last).beat + 1, self._progress()))
            except LevadaError:
                self._kept = before
                raise
        if not written:
            self._cancelled.set()
            raise Transient("copy_cancelled", f"the copy of the table with OID {int(table)} was cancelled")

    def _beat(self) -> None:
        while not self._ended.wait(_BEAT_S):
            try:
                with self._lock:
                    if self._ended.is_set():
                        return
                    written = self._write(Answer(read_answer(self._last).beat + 1, self._progress()))
            except LevadaError as error:
                _log.warning("%s", error)
                written = False
            if not written:
                _log.warning("the copy of table %d is cancelled: its order was withdrawn", self._table)
                self._cancelled.set()
                return

    def _write(self, answer: Answer) -> bool:
        """Replace the last answer. Return False if the order was withdrawn or taken by another process."""
        now = replace(self._last, answer=replace(answer, kept=self._kept).to_text())
        stored = self._store.change_copy_order(self._table, self._last, now)
        self._last = now
        return stored


def open_order(store: PipelineStore, table: TableId, token: str = "") -> CopyOrder | None:
    """Return the order of a table's copy if it has no final answer. A process that died may have taken it before.

    Without ``token`` any order counts. A pod of an earlier order must not take the order of another pod.
    """
    order = store.get_copy_order(table)
    if order is None or token not in ("", order.token):
        return None
    return None if read_answer(order).final else order
