"""The job of a dedicated copy, in a process that shares only the store and the destination with the driver."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from levada.copy.tasks import TaskRunner
from levada.destinations.interface import Destination
from levada.errors import LevadaError, NeedsOperator, Transient
from levada.runtime.config import PipelineConfig
from levada.runtime.config_ref import ConfigRef
from levada.runtime.copies.orders import Answer, read_answer, read_plan
from levada.runtime.copies.table_copy import Copied, TableCopy
from levada.runtime.tables.retries import as_levada_error
from levada.stores.interface import CopyOrder, PipelineStore
from levada.values import QualifiedTable, TableId

if TYPE_CHECKING:
    from levada.copy.snapshot import SnapshotRows

_log = logging.getLogger(__name__)

_BEAT_S: Final = 5.0


class CopyJob:
    """Copies one table by the driver's order, which has the plan."""

    def __init__(
        self,
        config: PipelineConfig,
        store: PipelineStore,
        destination: Destination,
        tasks: TaskRunner,
        cancelled: threading.Event,
    ) -> None:
        self._config = config
        self._store = store
        self._destination = destination
        self._tasks = tasks
        self._cancelled = cancelled
        self._rows: SnapshotRows | None = None

    def run(self, table: TableId, name: QualifiedTable) -> Copied | None:
        """Copy the table and answer the order. Return None if there is no unanswered order.

        If the copy fails, answer with the error and raise it. Raise Transient ``copy_cancelled`` if the order was
        withdrawn or taken by another process.
        """
        order = open_order(self._store, table)
        if order is None:
            return None
        self._store.join(order.epoch)
        mine = replace(order, worker=uuid.uuid4().hex, answer=Answer(beat=read_answer(order).beat + 1).to_text())
        if not self._store.change_copy_order(table, order, mine):
            return None
        _log.info("copying %s for the driver with epoch %d", name, order.epoch)
        with self._heartbeat(table, mine) as answer:
            try:
                copier = TableCopy(
                    ConfigRef(self._config),
                    self._store,
                    self._destination,
                    self._tasks,
                    order.epoch,
                    require_order=lambda: self._require_order(table, name, mine),
                )
                self._load()
                copied = copier.run(table, name, read_plan(order), self._cancelled, self._started)
            except Exception as error:
                if not self._cancelled.is_set():
                    answer(Answer(error=as_levada_error(error)))
                raise
            progress = self._rows.progress() if self._rows else None
            if not answer(Answer(progress=progress, lsn=copied.lsn, storage=copied.storage)):
                raise NeedsOperator("copy_superseded", f"the copy of {name} is complete, but its order was withdrawn")
            return copied

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

    @contextmanager
    def _heartbeat(self, table: TableId, mine: CopyOrder) -> Iterator[Callable[[Answer], bool]]:
        """Write the progress to the order every few seconds. Cancel the copy once the order is not this process's.

        Yield a function that writes the final answer. It returns False if the order was withdrawn.
        """
        ended, turn = threading.Event(), threading.Lock()
        last = mine

        def write(answer: Answer) -> bool:
            nonlocal last
            with turn:
                now = replace(last, answer=answer.to_text())
                stored = self._store.change_copy_order(table, last, now)
                last = now
                return stored

        def beat() -> None:
            while not ended.wait(_BEAT_S):
                progress = None if self._rows is None else self._rows.progress()
                try:
                    written = write(Answer(read_answer(last).beat + 1, progress))
                except LevadaError as error:
                    _log.warning("%s", error)
                    written = False
                if not written:
                    _log.warning("the copy of table %d is cancelled: its order was withdrawn", table)
                    self._cancelled.set()
                    return

        def answered(answer: Answer) -> bool:
            # The final answer must not be overwritten by a heartbeat.
            ended.set()
            thread.join()
            return write(answer)

        thread = threading.Thread(target=beat, name="levada-copy-beat", daemon=True)
        thread.start()
        try:
            yield answered
        finally:
            ended.set()
            thread.join()


def open_order(store: PipelineStore, table: TableId) -> CopyOrder | None:
    """Return the order of a table's copy if it has no final answer. A process that died may have taken it before."""
    order = store.get_copy_order(table)
    if order is None:
        return None
    answer = read_answer(order)
    return order if answer.lsn is None and answer.error is None else None
