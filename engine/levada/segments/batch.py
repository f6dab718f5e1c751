"""What apply hands to a destination: the staged changes of one or more tables up to an LSN.

Nothing is read before it is asked for: the files are on the staging area, and a destination reads them as Arrow, in
this process or in Spark tasks, or walks the events one by one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from levada.pgoutput.changes import Truncate
from levada.schema import ReplicatedTableSchema
from levada.segments.manifest import SegmentFile
from levada.values import Lsn, TableId

if TYPE_CHECKING:
    from levada.pgoutput.events import Event


class TableEvents(ABC):
    """The changes of one table with ``after <= commit LSN < until``, whichever versions they were made under."""

    schema: ReplicatedTableSchema
    """The version that the table has at the end of the batch: bring the destination's table to it first."""
    versions: tuple[ReplicatedTableSchema, ...]
    """Every version inside the batch, oldest first; the last is ``schema``."""
    files: tuple[SegmentFile, ...]
    """Where the changes are, in WAL order; the first and the last may hold some outside of the range."""
    truncates: tuple[Truncate, ...]
    """The truncates inside the range, in WAL order; a change is before one if its (commit LSN, ordinal) is."""
    after: Lsn
    until: Lsn

    @property
    def rows(self) -> int:
        """How many row changes the files have: an upper bound of what `read` returns."""
        return sum(f.rows for f in self.files)

    @abstractmethod
    def scan(
        self, columns: Sequence[str] | None = None, *, files: Sequence[SegmentFile] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the changes in WAL order, a row group at a time, projected to ``schema`` by attnum.

        Columns that a row's version had not yet hold ``missing_value``; widened types are cast. The layout is that of
        `levada.schema.changes` with all the optional columns present. ``columns`` restricts what is read (names of
        ``schema`` and of the layout); ``files`` restricts where from.
        """

    def read(self, columns: Sequence[str] | None = None) -> pa.Table | None:
        """Return all of `scan` as one table, None if there is no row."""
        batches = [b for b in self.scan(columns) if b.num_rows]
        return pa.Table.from_batches(batches) if batches else None


class EventBatch(ABC):
    """The changes of ``tables`` up to ``until``, whole transactions. Iterate for `Event` objects in WAL order.

    Events show each row in the columns that it had, with a `RelationEvent` where they changed. Arrow access by
    `changes` shows all rows in the newest version of the batch. A batch without changes only asks whether the changes
    of earlier batches are durable.
    """

    tables: tuple[TableId, ...]
    until: Lsn
    only_asks: ClassVar[bool] = False
    """Whether the batch has no changes by construction, and only asks for durability."""

    @abstractmethod
    def changes(self, table: TableId) -> TableEvents:
        """Return the changes of one table of ``tables``."""

    @abstractmethod
    def __iter__(self) -> Iterator[Event]:
        """Iterate over the events of all tables in the order of (commit LSN, ordinal)."""


class DurabilityRequest(EventBatch):
    """A batch without changes: it asks whether what the destination has accepted of a table is durable."""

    only_asks = True

    def __init__(self, schemas: Sequence[ReplicatedTableSchema], until: Lsn) -> None:
        self.tables = tuple(s.id for s in schemas)
        self.until = until
        self._changes = {s.id: _NoChanges(s, until) for s in schemas}

    def changes(self, table: TableId) -> TableEvents:
        """Return no changes of one table of ``tables``."""
        return self._changes[table]

    def __iter__(self) -> Iterator[Event]:
        return iter(())


class _NoChanges(TableEvents):
    def __init__(self, schema: ReplicatedTableSchema, until: Lsn) -> None:
        self.schema = schema
        self.versions = (schema,)
        self.files = ()
        self.truncates = ()
        self.after = self.until = until

    def scan(
        self, columns: Sequence[str] | None = None, *, files: Sequence[SegmentFile] | None = None
    ) -> Iterator[pa.RecordBatch]:
        return iter(())
