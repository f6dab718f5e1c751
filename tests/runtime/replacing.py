"""A destination that records counts, and makes shadow copies of tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

from tests.rigs.recording import Recording

from levada.copy.rows import TableRows
from levada.destinations import Capabilities
from levada.schema import TableTarget
from levada.segments.batch import EventBatch
from levada.values import Durability, TableId, Watermark


class Replacing(Recording):
    """A destination with shadow copies.

    ``steps`` has the steps of new copies in order. ``meanwhile`` runs before each.
    """

    capabilities: ClassVar[Capabilities] = replace(Recording.capabilities, replacement=True)

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[str] = []
        self.meanwhile: Callable[[str], None] = lambda step: None
        self.held: dict[str, int] = {}
        """The number of rows of each table: the copied ones, and the changes since."""
        self._beside: dict[TableId, int] = {}
        self._names: dict[TableId, str] = {}

    def write_table_rows(self, target: TableTarget, rows: TableRows, mark: Watermark) -> Durability:
        result = super().write_table_rows(target, rows, mark)
        self._names[target.id] = target.schema.name.name
        self.held[target.schema.name.name] = self.copies[-1][3]
        return result

    def write_events(self, events: EventBatch, mark: Watermark) -> Durability:
        result = super().write_events(events, mark)
        for table in events.tables:
            self.held[self._names[table]] += _rows(events, table)
        return result

    def copy_replacement(self, target: TableTarget, rows: TableRows, mark: Watermark) -> bool:
        schema = target.schema
        if schema.id not in self.marks:
            return False
        self._step("copy")
        count = sum(rows.map_partitions(lambda reader: sum(batch.num_rows for batch in reader)))
        self._step("copied")
        with self.lock:
            columns = tuple(c.name for c in schema.columns)
            self.copies.append((schema.name.name, (target.mode, target.name), columns, count))
            self._beside[schema.id] = count
        return True

    def write_replacement_events(self, events: EventBatch, mark: Watermark) -> bool:
        self._step("follow")
        (table,) = events.tables
        if len(events.changes(table).versions) > 1:
            return False
        self._beside[table] += _rows(events, table)
        return True

    def swap_replacement(self, table: TableId, mark: Watermark) -> bool:
        self._step("swap")
        assert mark.lsn >= self.marks[table].lsn, "the new copy is behind the table"
        self.held[self._names[table]] = self._beside.pop(table)
        self.marks[table] = mark
        return True

    def drop_replacement(self, table: TableId) -> None:
        self._step("drop")
        self._beside.pop(table, None)

    def _step(self, step: str) -> None:
        self.steps.append(step)
        self.meanwhile(step)


def _rows(events: EventBatch, table: TableId) -> int:
    return sum(batch.num_rows for batch in events.changes(table).scan())
