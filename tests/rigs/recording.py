"""A destination that records its calls by table, for tests of the engine around it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import ClassVar

from levada.copy.rows import TableRows
from levada.destinations import Capabilities, Destination
from levada.destinations.groups import NewTable
from levada.schema import TableTarget
from levada.segments.batch import EventBatch
from levada.values import Durability, QualifiedTable, TableId, TableMode, Watermark

Stored = tuple[TableMode, QualifiedTable]
"""The mode and the name of a target."""


class Recording(Destination):
    """A destination that counts each table's copied rows and applied changes.

    It blocks or fails where a test says so.
    """

    name: ClassVar[str] = "recording"
    capabilities: ClassVar[Capabilities] = Capabilities(upsert=True, watermark=True)

    def __init__(self) -> None:
        self.marks: dict[TableId, Watermark] = {}
        self.copies: list[tuple[str, Stored, tuple[str, ...], int]] = []
        self.dropped: list[tuple[str, Stored]] = []
        self.applied_rows: dict[str, int] = {}
        self.applied_as: dict[str, Stored] = {}
        self.before_apply: Callable[[str], None] = lambda table: None
        self.before_copy: Callable[[str], None] = lambda table: None
        self.before_look: Callable[[], None] = lambda: None
        self.lock = threading.Lock()

    def drop_table_for_copy(self, target: TableTarget, epoch: int | None = None) -> None:
        with self.lock:
            self.dropped.append((target.schema.name.name, (target.mode, target.name)))
            self.marks.pop(target.id, None)

    def write_table_rows(self, target: TableTarget, rows: TableRows, mark: Watermark) -> Durability:
        schema = target.schema
        self.before_copy(schema.name.name)
        count = sum(rows.map_partitions(lambda reader: sum(batch.num_rows for batch in reader)))
        columns = tuple(c.name for c in schema.columns)
        with self.lock:
            self.copies.append((schema.name.name, (target.mode, target.name), columns, count))
            self.marks[schema.id] = mark
        return Durability.DURABLE

    def write_events(self, events: EventBatch, mark: Watermark) -> Durability:
        for table in events.tables:
            changes = events.changes(table)
            self.before_apply(changes.schema.name.name)
            count = sum(batch.num_rows for batch in changes.scan())
            with self.lock:
                name = changes.schema.name.name
                self.applied_rows[name] = self.applied_rows.get(name, 0) + count
                self.applied_as[name] = (changes.target.mode, changes.target.name)
                self.marks[table] = mark
        return Durability.DURABLE

    def applied(self, table: TableId) -> Watermark | None:
        self.before_look()
        return self.marks.get(table)

    def copies_of(self, table: str) -> int:
        """Return the number of copies of the table."""
        return sum(copy[0] == table for copy in self.copies)


class Together(Recording):
    """A destination that writes groups of small tables. It says that a table in ``taken`` is there already."""

    def __init__(self) -> None:
        super().__init__()
        self.groups: list[list[str]] = []
        self.taken: set[str] = set()
        self.before_group: Callable[[], None] = lambda: None
        """Called in the snapshot of a group, before its tables are locked."""
        self.before_write: Callable[[], None] = lambda: None
        """Called after the rows of a group are read."""

    def group_writer(self) -> Together:
        return self

    def free(self, targets: Sequence[TableTarget]) -> Collection[TableId]:
        self.before_group()
        return {its.id for its in targets if its.schema.name.name not in self.taken}

    def write(self, tables: Sequence[NewTable], mark: Watermark) -> Collection[TableId]:
        self.before_write()
        with self.lock:
            self.groups.append([its.target.schema.name.name for its in tables])
        for its in tables:
            self.write_table_rows(its.target, its.rows, mark)
        return {its.id for its in tables}


class Once(Recording):
    """A destination that cannot say what it holds, and whose process ends after a batch was written."""

    capabilities = replace(Recording.capabilities, watermark=False)

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def write_events(self, events: EventBatch, mark: Watermark) -> Durability:
        for table in events.tables:
            for batch in events.changes(table).scan(["id"]):
                self.seen += batch.column(0).to_pylist()
        return super().write_events(events, mark)
