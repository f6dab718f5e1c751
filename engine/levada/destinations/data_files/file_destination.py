"""The common part of destinations whose data files the engine writes: what their batches do before a COMMIT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from levada.copy.tasks import BatchRunner
from levada.destinations.data_files.fold_task import FoldTask
from levada.destinations.data_files.folded_ahead import FoldedAhead
from levada.destinations.fenced import FencedDestination, TableState
from levada.destinations.interface import TableMode
from levada.segments.batch import TableEvents
from levada.values import TableId


@dataclass(slots=True, eq=False, kw_only=True)
class FileTableState(TableState):
    """The state of one table, with the files of transactions in progress that are folded already."""

    ahead: FoldedAhead = field(default_factory=FoldedAhead)

    def forget(self) -> None:
        """Discard the state of a dropped table, and the data files that no batch has used."""
        self.seen = None
        self.ahead.clear()


F = TypeVar("F", bound=FileTableState)


class FileDestination(FencedDestination[F], Generic[F]):
    """A destination that folds the large files of a transaction before its COMMIT, in the tasks of its batches."""

    batch_tasks: BatchRunner | None
    """The runner of the tasks that write batches. With None this process writes them."""
    most_bytes_ahead: int = 128 << 20
    """The bytes in memory for results of `fold_ahead`: the keys of about eight million rows."""

    def fold_ahead(self, events: TableEvents) -> None:
        """Fold the file and write its data files in a task. A changelog has the commit in its rows, and waits.

        Do nothing once the results of all tables take `most_bytes_ahead`.
        """
        runner, state = self.batch_tasks, self._table_of(events.target)
        if runner is None or self.effective_mode(events.target) is not TableMode.UPSERT:
            return
        if sum(known.ahead.nbytes for known in self._known_states().values()) >= self.most_bytes_ahead:
            return
        with state.lock:
            task = self._task_ahead(state, events)
        if task is not None:
            state.ahead.fold(task, events, runner)

    def forget_ahead(self, table: TableId, paths: Sequence[str]) -> None:
        """Remove the data files."""
        if (state := self._known_states().get(table)) is not None:
            state.ahead.forget(paths)

    def shutdown(self) -> None:
        """Remove the data files that no batch has used."""
        for state in self._known_states().values():
            state.ahead.clear()

    def _known_states(self) -> Mapping[TableId, F]:
        """Return the states of the tables so far."""
        raise NotImplementedError

    def _task_ahead(self, state: F, events: TableEvents) -> FoldTask | None:
        """Return the task that folds the changes, None if a batch would change the form of the table's files first.

        The lock of the state is held. Nothing may be committed.
        """
        raise NotImplementedError
