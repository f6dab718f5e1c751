"""The successive ranges of a large batch, each of which is the work of one task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from levada.copy.tasks import BatchRunner
from levada.segments.batch import TableEvents
from levada.segments.files import SegmentFile
from levada.segments.limits import BatchLimits

_WINDOW: Final = 4
"""The most tasks for each place whose results wait for this process. It bounds the memory for keys."""


@dataclass(frozen=True, slots=True)
class BatchRange:
    """Successive files of a batch, and the part of each that belongs to the range, see `TableEvents.part`."""

    files: tuple[SegmentFile, ...]
    share: tuple[int, int] = (0, 1)


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """The parts of a batch for tasks, in WAL order, and the number of tasks that run at the same time."""

    runner: BatchRunner
    parts: tuple[TableEvents, ...]
    places: int

    @property
    def window(self) -> int:
        """The most tasks that begin before their results are taken."""
        return _WINDOW * self.places


def plan_tasks(events: TableEvents, runner: BatchRunner | None) -> TaskPlan | None:
    """Return the plan for a large batch.

    None: the batch is small, there is no place for its tasks, or its files cannot be read there.
    """
    if runner is None or (events.on_this_machine and not runner.on_this_machine):
        return None
    sizes = runner.sizes(events.limits)
    places = runner.places(events.rows, sum(_size(file, sizes) for file in events.files))
    if not places:
        return None
    parts = [events.part(r.files, r.share) for r in batch_ranges(events.files, sizes)]
    known = tuple(part for part in parts if part is not None)
    # Without a file, the changes are not in files.
    return TaskPlan(runner, known, places) if known and len(known) == len(parts) else None


def batch_ranges(files: Sequence[SegmentFile], limits: BatchLimits) -> Iterator[BatchRange]:
    """Yield the ranges of the files, in WAL order. A large Parquet file is divided into several ranges. Pure."""
    waiting: list[SegmentFile] = []
    size = 0.0
    for file in files:
        own = _size(file, limits)
        if waiting and size + own > 1:
            yield BatchRange(tuple(waiting))
            waiting, size = [], 0.0
        parts = -int(-own // 1)
        if parts > 1 and file.offset is None:
            yield from (BatchRange((file,), (part, parts)) for part in range(parts))
        else:
            waiting.append(file)
            size += own
    if waiting:
        yield BatchRange(tuple(waiting))


def _size(file: SegmentFile, limits: BatchLimits) -> float:
    """Return the size of a file as a multiple of a task's."""
    return max(file.rows / limits.task_rows, file.bytes / limits.task_bytes)
