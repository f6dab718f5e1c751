"""Writes a large batch of changes to a changelog table in tasks, each of which has a range of the WAL."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from levada.copy.results_in_order import results_in_order
from levada.copy.tasks import BatchRunner
from levada.destinations.data_files.batch_ranges import TaskPlan, plan_tasks
from levada.destinations.data_files.changelog import write_changelog, write_truncates
from levada.destinations.data_files.layout import FileLayout
from levada.destinations.data_files.storage import Storage, WrittenFile, remove_files
from levada.schema import ReplicatedTableSchema
from levada.segments.batch import TableEvents
from levada.values import Lsn


@dataclass(frozen=True, slots=True)
class ChangelogTask:
    """Writes a range of changes. It is pickled into tasks."""

    storage: Storage
    layout: FileLayout
    schema: ReplicatedTableSchema
    after: Lsn

    def __call__(self, events: TableEvents) -> tuple[list[WrittenFile], int]:
        """Return the files, and the number of values that became NULL."""
        return write_changelog(self.storage, self.layout, self.schema, events, self.after), events.nulled


def write_changes(task: ChangelogTask, events: TableEvents, runner: BatchRunner | None) -> list[WrittenFile]:
    """Write the changes as `write_changelog` does, those of a large batch in tasks. Return the files."""
    plan = plan_tasks(events, runner)
    if plan is None:
        return task(events)[0]
    files: list[WrittenFile] = []
    try:
        events.tasks += _write_parts(task, plan, files)
        files += write_truncates(task.storage, task.layout, task.schema, events, task.after)
    except BaseException:
        remove_files(task.storage, files)
        raise
    events.nulled += sum(part.nulled for part in plan.parts)
    return files


def _write_parts(task: ChangelogTask, plan: TaskPlan, files: list[WrittenFile]) -> int:
    """Write the parts of the batch, and add their files. Return the number of results of other processes."""
    used = 0
    with results_in_order(
        plan.runner,
        [partial(task, part) for part in plan.parts],
        f"changes of {task.schema.name}",
        parallel=plan.places,
        window=plan.window,
        helps=plan.runner.is_helped,
        unused=lambda written: remove_files(task.storage, written[0]),
    ) as results:
        for part, result in zip(plan.parts, results, strict=True):
            if result.value is None:
                part.nulled = 0
                files += task(part)[0]
                continue
            used += result.elsewhere
            files += result.value[0]
            part.nulled = result.value[1]
    return used
