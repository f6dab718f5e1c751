"""Files of transactions in progress, folded and written to data files before their COMMIT.

A file is one range of a batch, as in `levada.destinations.data_files.parallel_upsert`. What it becomes depends on the
form of the table's data files alone, and not on the rows that the table has at the COMMIT. So the batch of the
transaction only has to find and delete the earlier rows of the keys. It uses a result that was made in the form that
the table has then, and folds the file itself otherwise.

The data files belong to no table before the batch is committed. They are removed with their staged file, and those of a
process that ends are orphans.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import Final

from levada.copy.results_in_order import STALLED_S
from levada.copy.tasks import BatchRunner, run_tasks
from levada.destinations.data_files.fold_task import FoldedRange, FoldTask
from levada.destinations.data_files.storage import remove_files
from levada.segments.batch import TableEvents
from levada.segments.files import SegmentFile
from levada.segments.rolled_back import Ranges

_LONGEST_S: Final = 3600.0
"""The age from which data files are not used. Those of orphans are removed after a day at the earliest."""


@dataclass(slots=True, eq=False)
class _Ahead:
    """A staged file. ``folded`` is None while its task runs, and after it has failed."""

    task: FoldTask
    begun_s: float
    rolled_back: Ranges
    """The changes that it leaves out."""
    folded: FoldedRange | None = None
    ended: bool = False


class FoldedAhead:
    """The files of one table that are folded already, by the paths of their staged files. Thread-safe.

    ``clock`` is monotonic, in seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._files: dict[str, _Ahead] = {}

    @property
    def nbytes(self) -> int:
        """The keys and incomplete rows in memory, in bytes."""
        with self._changed:
            return sum(_size(f.folded) for f in self._files.values() if f.folded is not None)

    def fold(self, task: FoldTask, events: TableEvents, runner: BatchRunner) -> None:
        """Fold the only file of ``events`` in a task of ``runner``. Raise its errors.

        Do nothing if the task could not read the file.
        """
        if events.on_this_machine and not runner.on_this_machine:
            return
        (file,) = events.files
        part = events.part(events.files)
        mine = _Ahead(task, self._clock(), file.rolled_back)
        with self._changed:
            if part is None or not events.as_staged or file.path in self._files:
                return
            self._files[file.path] = mine
        name, never = f"changes of {task.schema.name}", threading.Event()
        folded = None
        try:
            [folded] = run_tasks(runner, [_Fold(task, part)], name, parallel=1, cancelled=never)
        finally:
            with self._changed:
                mine.folded, mine.ended = folded, True
                wanted = self._files.get(file.path) is mine
                self._changed.notify_all()
            if not wanted:
                _remove(mine)

    def ranges(self, events: TableEvents, task: FoldTask) -> Iterator[tuple[TableEvents, FoldedRange | None]]:
        """Yield the successive ranges of a batch, which is ``events`` for ``task``, with the result of those folded.

        The caller owns the data files of a result. Results that the batch cannot use are removed.
        """
        if task.before is not None or not events.as_staged:
            # Rows before the TRUNCATE are among those of the file, and so are deletes that may not be applied.
            self.forget(f.path for f in events.files)
        waiting: list[SegmentFile] = []
        for file in events.files:
            if not self._is_usable(file, events, task):
                waiting.append(file)
                continue
            if waiting and (before := events.part(waiting)) is not None:
                yield before, None
            waiting = []
            part, folded = events.part([file]), self._take(file)
            if folded is not None and part is not None:
                part.nulled, part.tasks = folded.nulled, 1
                yield part, folded
            else:
                waiting = [file]
        if len(waiting) == len(events.files):
            yield events, None
        elif waiting and (rest := events.part(waiting)) is not None:
            yield rest, None

    def forget(self, paths: Collection[str] | Iterator[str]) -> None:
        """Remove the results of staged files that no batch will have."""
        with self._changed:
            gone = [found for path in paths if (found := self._files.pop(path, None)) is not None]
        for each in gone:
            if each.ended:
                _remove(each)

    def clear(self) -> None:
        """Remove all results, because the table is dropped or copied."""
        self.forget([*self._files])

    def _is_usable(self, file: SegmentFile, events: TableEvents, task: FoldTask) -> bool:
        """Return True if the file was folded as the batch would fold it. Otherwise its result is removed."""
        with self._changed:
            mine = self._files.get(file.path)
        if mine is None:
            return False
        whole = max(task.after, events.after) <= file.first_lsn and file.last_lsn < events.until
        young = self._clock() - mine.begun_s < _LONGEST_S
        same_rows = mine.rolled_back == file.rolled_back
        if whole and young and same_rows and _same_form(mine.task, task):
            return True
        self.forget([file.path])
        return False

    def _take(self, file: SegmentFile) -> FoldedRange | None:
        """Return the result of a file, which is awaited. Return None if its task failed or does not end."""
        with self._changed:
            mine = self._files[file.path]
            self._changed.wait_for(lambda: mine.ended, STALLED_S)
            del self._files[file.path]
            if not mine.ended or mine.folded is None or mine.folded.pieces is None:
                return None
            return mine.folded


@dataclass(frozen=True, slots=True)
class _Fold:
    """A task, with the changes that it folds."""

    task: FoldTask
    events: TableEvents

    def __call__(self) -> FoldedRange:
        return self.task(self.events)


def _same_form(one: FoldTask, other: FoldTask) -> bool:
    """Return True if both write the same data files of the same changes."""
    same = replace(one, after=other.after, before=other.before) == other
    return same and one.layout.arrow.equals(other.layout.arrow, check_metadata=True)


def _size(folded: FoldedRange) -> int:
    size = 0
    for piece in folded.pieces or ():
        size += piece.keys.nbytes + piece.gone.nbytes
        size += 0 if piece.incomplete is None else piece.incomplete.upserts.nbytes
    return size


def _remove(ahead: _Ahead) -> None:
    if ahead.folded is not None:
        remove_files(ahead.task.storage, ahead.folded.files)
