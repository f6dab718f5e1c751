"""Reports of capture on changes of the source's catalog, in the order of the stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from levada.errors import LevadaError, NeedsOperator
from levada.runtime.inbox import Message, Recorded
from levada.schema.retypes import Cast
from levada.schema.storage import LeafStorage, TableStorage
from levada.values import Lsn, QualifiedTable, TableId


@dataclass(frozen=True, slots=True)
class TableAltered(Recorded):
    """An ALTER TABLE that the event trigger announced in transaction ``xid``, with a message at LSN ``at``.

    The transaction was committed at LSN ``committed``, perhaps long after. ``storage`` is the table's storage after the
    statement. ``casts`` has the columns that the client's query retypes, by attnum, and is empty if that is unknown.
    ``truncated`` is True if a TRUNCATE of the table is streamed in the same transaction, and ``emptied`` if it comes
    after the ALTER TABLE. Capture waits until it is recorded, so that nothing is applied if the table is parked.
    """

    table: TableId
    at: Lsn
    committed: Lsn
    xid: int
    storage: TableStorage
    casts: Mapping[int, Cast]
    truncated: bool = False
    emptied: bool = False
    ordinal: int = 0
    """The number of the transaction's row or truncate message that comes next."""


@dataclass(frozen=True, slots=True)
class TablesUnpublished(Recorded):
    """Tables whose changes a DDL statement took out of the stream, for good or until another statement.

    The event trigger announced it in a transaction that was committed at LSN ``at``. ``error`` returns the error of a
    table. Capture waits until it is recorded.
    """

    tables: frozenset[TableId]
    at: Lsn
    error: Callable[[QualifiedTable], NeedsOperator]


@dataclass(frozen=True, slots=True)
class PartitionsCreated(Recorded):
    """New partitions of a table, announced like `TableAltered`."""

    table: TableId
    at: Lsn
    committed: Lsn
    xid: int
    leaves: Mapping[TableId, LeafStorage]


@dataclass(frozen=True, slots=True)
class TablesDropped(Recorded):
    """Tables that one statement dropped, announced like `TableAltered`. Some may have been partitions."""

    tables: frozenset[TableId]
    at: Lsn
    committed: Lsn
    xid: int
    ordinal: int = 0


@dataclass(frozen=True, slots=True)
class PartitionsAltered(Recorded):
    """Partitions of a table that were altered themselves, announced like `TableAltered`."""

    table: TableId
    at: Lsn
    committed: Lsn
    xid: int
    leaves: Mapping[TableId, LeafStorage]
    truncated: bool = False
    emptied: bool = False


@dataclass(frozen=True, slots=True)
class IdentitiesLent(Message):
    """Tables have had another replica identity for long, which ``error`` says. None: all have their own again."""

    error: LevadaError | None


@dataclass(frozen=True, slots=True)
class TriggerLost(Message):
    """The event trigger that was in place is so no longer, which ``error`` says. None: it is again."""

    error: LevadaError | None


@dataclass(frozen=True, slots=True)
class LeavesStreamed(Recorded):
    """Relations whose rows are streamed as those of ``root`` in transaction ``xid``, committed at LSN ``at``.

    Capture waits until it is recorded.
    """

    leaves: frozenset[TableId]
    root: TableId
    at: Lsn
    xid: int
