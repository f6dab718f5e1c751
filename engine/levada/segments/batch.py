"""The interface of a batch: the staged changes of one or more tables up to an LSN, for a destination.

A batch reads lazily from the files on the staging area. A destination reads the changes as Arrow, in this process or in
Spark tasks, or iterates over the events one by one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

import pyarrow as pa

from levada.pgoutput.changes import Truncate
from levada.schema import ReplicatedTableSchema, TableTarget
from levada.segments.files import SegmentFile
from levada.segments.limits import BatchLimits
from levada.values import Lsn, TableId

if TYPE_CHECKING:
    from levada.pgoutput.events import Event


class TableEvents(ABC):
    """The changes of one table with ``after <= commit LSN < until``, across all of its versions."""

    target: TableTarget
    """The table, with its version at the end of the batch. Change the destination's table to it before you write."""
    versions: tuple[ReplicatedTableSchema, ...]
    """All versions in the batch, oldest first. The last one is ``schema``."""
    files: tuple[SegmentFile, ...]
    """The files with the changes, in WAL order. The first and the last may have changes outside of the range."""
    truncates: tuple[Truncate, ...]
    """The truncates in the range, in WAL order. A change is before a truncate if its (commit LSN, ordinal) is lower."""
    after: Lsn
    until: Lsn
    limits: BatchLimits = BatchLimits()
    """The sizes of the parts in which a destination of the project processes the batch."""
    nulled: int = 0
    """The number of values that became NULL under the policy ``Null``, in scans by this object in this process.

    A value counts once, however often it is scanned.
    """
    tasks: int = 0
    """The number of tasks whose results the destination used, if it read the changes in other processes."""

    @property
    def as_staged(self) -> bool:
        """True if the changes are those in the files, projected to ``schema`` and not changed otherwise."""
        return False

    @property
    def on_this_machine(self) -> bool:
        """True if other machines cannot read the files."""
        return True

    @property
    def schema(self) -> ReplicatedTableSchema:
        """The table's version at the end of the batch."""
        return self.target.schema

    @property
    def rows(self) -> int:
        """The number of row changes in the files, an upper bound for the rows that `read` returns."""
        return sum(f.rows for f in self.files)

    @abstractmethod
    def scan(
        self, columns: Sequence[str] | None = None, *, files: Sequence[SegmentFile] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the changes in WAL order, one row group at a time, projected to ``schema`` by attnum.

        Columns that were added after a row's version have their ``missing_value``. Widened types are cast. The layout
        is that of `levada.schema.changes` with all optional columns. ``columns`` selects columns, by their names in
        ``schema`` and in the layout. ``files`` selects files of the batch.
        """

    def part(self, files: Sequence[SegmentFile], share: tuple[int, int] = (0, 1)) -> TableEvents | None:
        """Return the changes in some files of the batch, to be pickled and read in another process.

        With the share ``(k, n)`` it has the k-th of n successive parts of each file, counted from 0. The truncates are
        left out. Return None if the changes can be read only in this process.
        """
        return None

    def read(self, columns: Sequence[str] | None = None) -> pa.Table | None:
        """Return all rows of `scan` as one table, or None if there is no row."""
        batches = [b for b in self.scan(columns) if b.num_rows]
        return pa.Table.from_batches(batches) if batches else None


class WrappedEvents(TableEvents):
    """The changes of another object in another form. The subclass sets ``target`` and ``versions``."""

    def __init__(self, inner: TableEvents) -> None:
        self._inner = inner
        self.target, self.versions, self.files = inner.target, inner.versions, inner.files
        self.truncates, self.after, self.until, self.limits = inner.truncates, inner.after, inner.until, inner.limits

    @property
    def on_this_machine(self) -> bool:
        """True if other machines cannot read the files."""
        return self._inner.on_this_machine

    @property
    def rows(self) -> int:
        """The number of changes of the other object, an upper bound but for updates of keys that keep rows."""
        return self._inner.rows


class EventBatch(ABC):
    """The changes of complete transactions for ``tables`` up to ``until``.

    Iterate over it for `Event` objects in WAL order. Each transaction with a change of ``tables`` is between its
    `Begin` and its `Commit`. Events have each row in its original columns, with a `RelationEvent` where the columns
    change. The Arrow data of `changes` has all rows in the newest version of the batch. A batch without changes is a
    request to report whether the changes of earlier batches are durable.
    """

    tables: tuple[TableId, ...]
    until: Lsn
    only_asks: ClassVar[bool] = False
    """Whether the batch never has changes, because it only asks for the durability of earlier writes."""

    @abstractmethod
    def changes(self, table: TableId) -> TableEvents:
        """Return the changes of one table of ``tables``."""

    @abstractmethod
    def __iter__(self) -> Iterator[Event]:
        """Iterate over the events of all tables in the order of (commit LSN, ordinal)."""


class DurabilityRequest(EventBatch):
    """A batch without changes. It asks whether the accepted writes of the tables are durable."""

    only_asks = True

    def __init__(self, targets: Sequence[TableTarget], until: Lsn) -> None:
        self.tables = tuple(t.id for t in targets)
        self.until = until
        self._changes = {t.id: _NoChanges(t, until) for t in targets}

    def changes(self, table: TableId) -> TableEvents:
        """Return an empty set of changes for one table of ``tables``."""
        return self._changes[table]

    def __iter__(self) -> Iterator[Event]:
        return iter(())


class _NoChanges(TableEvents):
    def __init__(self, target: TableTarget, until: Lsn) -> None:
        self.target = target
        self.versions = (target.schema,)
        self.files = ()
        self.truncates = ()
        self.after = self.until = until

    def scan(
        self, columns: Sequence[str] | None = None, *, files: Sequence[SegmentFile] | None = None
    ) -> Iterator[pa.RecordBatch]:
        return iter(())
