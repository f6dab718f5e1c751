"""Changes as Python objects, for callers that need rows: a lazy view over the Arrow columns.

The names are supabase/etl's. The order is that of ``(commit_lsn, ordinal)``, and each transaction's events are
between a `Begin` and a `Commit`. A transaction without other events has neither. The engine itself never creates these
objects.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from levada.pgoutput.changes import (
    ChangeBatch,
    LogicalMessage,
    RelationChange,
    TableChanges,
    Truncate,
)
from levada.pgoutput.temporal import date_text, timestamp_text
from levada.pgoutput.transactions import OpenTransaction
from levada.pgoutput.wire import Ints
from levada.schema import ColumnType, Kind, ReplicatedTableSchema
from levada.schema.changes import (
    COMMIT_LSN,
    OLD,
    OLD_KIND,
    OP,
    ORDINAL,
    UNCHANGED,
    UNREPRESENTABLE,
)
from levada.values import Lsn, QualifiedTable, TableId

Row: TypeAlias = Mapping[str, Any]
"""Values by column name, as Python objects of `pyarrow`. Dates beyond Python's years are PostgreSQL's text."""

_CHUNK: Final = 1024
"""The number of rows that are converted to Python objects at a time."""


@dataclass(frozen=True, slots=True)
class Full:
    """A complete row.

    ``unrepresentable`` has PostgreSQL's text of values that Arrow cannot hold and that are None here.
    """

    values: Row
    unrepresentable: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Partial:
    """A row without the columns ``unchanged``, whose TOASTed values were not sent."""

    values: Row
    unchanged: tuple[str, ...]
    unrepresentable: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Key:
    """The columns of an old row that the replica identity provides."""

    values: Row
    unrepresentable: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Begin:
    """The beginning of a transaction. ``commit_ts_us`` is in microseconds since 1970-01-01 UTC.

    ``commit_lsn`` is the LSN of its COMMIT record, which the server sends first, and by which transactions are in
    order. ``start_lsn`` is the LSN that the server sends with its BEGIN, which is lower. Since PostgreSQL 15 it is the
    LSN of the first record that is sent for the transaction: a row or TRUNCATE of the publication, or a logical
    message. Before 15 it is the LSN of the transaction's first record. Transactions run at the same time, so
    ``start_lsn`` is not in order. ``xid`` is the ID of the top-level transaction, which PostgreSQL uses again after 4
    billion others. Changes of its subtransactions belong to it.
    """

    commit_lsn: Lsn
    ordinal: int
    start_lsn: Lsn
    commit_ts_us: int
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """The end of a transaction, with the values of its `Begin`.

    ``ordinal`` is the number of its row and truncate messages, also of those that are not shown. ``end_lsn`` is the end
    of its COMMIT record, exclusive: the next transaction has at least this ``commit_lsn``.
    """

    commit_lsn: Lsn
    ordinal: int
    start_lsn: Lsn
    end_lsn: Lsn
    commit_ts_us: int
    xid: int


@dataclass(frozen=True, slots=True)
class Insert:
    """A new row."""

    schema: ReplicatedTableSchema
    commit_lsn: Lsn
    ordinal: int
    row: Full


@dataclass(frozen=True, slots=True)
class Update:
    """A changed row. ``old`` is None if the key is unchanged and the replica identity is not FULL."""

    schema: ReplicatedTableSchema
    commit_lsn: Lsn
    ordinal: int
    row: Full | Partial
    old: Key | Full | None


@dataclass(frozen=True, slots=True)
class Delete:
    """A deleted row."""

    schema: ReplicatedTableSchema
    commit_lsn: Lsn
    ordinal: int
    old: Key | Full


@dataclass(frozen=True, slots=True)
class TruncateEvent:
    """The deletion of all rows of ``tables``. ``names`` are their names, in the same order."""

    commit_lsn: Lsn
    ordinal: int
    tables: tuple[TableId, ...]
    names: tuple[QualifiedTable, ...]
    cascade: bool
    restart_identity: bool


@dataclass(frozen=True, slots=True)
class RelationEvent:
    """The schema of the table's following rows."""

    schema: ReplicatedTableSchema
    commit_lsn: Lsn
    ordinal: int


@dataclass(frozen=True, slots=True)
class Unsupported:
    """Something in the stream that has no other event: a logical message, with its prefix in ``what``.

    ``commit_lsn`` is the LSN of the message.
    """

    commit_lsn: Lsn
    ordinal: int
    what: str


Event: TypeAlias = Begin | Commit | Insert | Update | Delete | TruncateEvent | RelationEvent | Unsupported
Item: TypeAlias = TableChanges | Truncate | RelationChange | LogicalMessage


def iter_events(streams: Iterable[Iterable[Item]], committed: Iterable[pa.RecordBatch] = ()) -> Iterator[Event]:
    """Yield the events of several streams of items, merged into one order. Each stream must be in order.

    ``committed`` has the transactions of the items, in the layout `TRANSACTIONS` and in order. Transactions without an
    item are left out. Items without a transaction are not between a `Begin` and a `Commit`. Items and transactions are
    read lazily.
    """
    return TransactionBounds().shown(_merged(streams), _Transactions(committed))


def batch_events(batch: ChangeBatch, bounds: TransactionBounds | None = None) -> Iterator[Event]:
    """Return an iterator over the events of a decoded slice.

    ``bounds`` is the object of the slice before, so that a transaction in several slices begins and ends once.
    """
    transactions = _Transactions(batch.committed.to_batches(), batch.open)
    return (bounds or TransactionBounds()).shown(_merged([item] for item in batch.items), transactions)


class TransactionBounds:
    """Adds the `Begin` and the `Commit` of transactions to their events.

    It keeps the open transaction between two calls of `shown`.
    """

    def __init__(self) -> None:
        self._open: Lsn | None = None
        self._commit: Commit | None = None

    def shown(self, events: Iterable[Event], transactions: _Transactions) -> Iterator[Event]:
        """Yield the events, each transaction's between its `Begin` and its `Commit`."""
        for event in events:
            if self._open is not None and event.commit_lsn != self._open:
                yield from self._end(transactions)
            if self._open is None and (found := transactions.find(event.commit_lsn)) is not None:
                self._open, self._commit = event.commit_lsn, found.commit
                yield found.begin
            yield event
        if self._open is not None:
            yield from self._end(transactions)

    def _end(self, transactions: _Transactions) -> Iterator[Event]:
        assert self._open is not None
        if self._commit is None and (found := transactions.find(self._open)) is not None:
            self._commit = found.commit
        if self._commit is not None:
            yield self._commit
            self._open = self._commit = None


@dataclass(frozen=True, slots=True)
class _Transaction:
    begin: Begin
    commit: Commit | None


class _Transactions:
    """A search in transactions by ascending commit LSNs, so that only transactions with events become objects."""

    def __init__(self, committed: Iterable[pa.RecordBatch], still_open: OpenTransaction | None = None) -> None:
        self._batches = iter(committed)
        self._columns: list[Ints] = []
        self._lsns: Ints = np.empty(0, np.int64)
        self._still_open = still_open

    def find(self, commit_lsn: Lsn) -> _Transaction | None:
        """Return the transaction, or None. No later call may have a lower LSN."""
        t = self._still_open
        if t is not None and t.commit_lsn == commit_lsn:
            return _Transaction(Begin(commit_lsn, 0, Lsn(t.start_lsn), t.commit_ts_us, t.xid), None)
        while not len(self._lsns) or self._lsns[-1] < commit_lsn:
            batch = next(self._batches, None)
            if batch is None:
                return None
            self._columns = [column.to_numpy() for column in batch.columns]
            self._lsns = self._columns[0]
        row = int(np.searchsorted(self._lsns, commit_lsn))
        if self._lsns[row] != commit_lsn:
            return None
        _, start_lsn, end_lsn, xid, at, changes = (int(column[row]) for column in self._columns)
        start = Lsn(start_lsn)
        return _Transaction(
            Begin(commit_lsn, 0, start, at, xid), Commit(commit_lsn, changes, start, Lsn(end_lsn), at, xid)
        )


def _merged(streams: Iterable[Iterable[Item]]) -> Iterator[Event]:
    return heapq.merge(*map(_events, streams), key=_place)


def _place(event: Event) -> tuple[int, int, bool]:
    # A relation has the ordinal of the row that follows it.
    return event.commit_lsn, event.ordinal, not isinstance(event, RelationEvent)


def _events(items: Iterable[Item]) -> Iterator[Event]:
    for item in items:
        match item:
            case TableChanges():
                for first in range(0, item.rows.num_rows, _CHUNK):
                    yield from _rows(item.schema, item.rows.slice(first, _CHUNK))
            case Truncate():
                yield _truncate_event(item)
            case RelationChange():
                yield RelationEvent(item.schema, item.commit_lsn, item.ordinal)
            case LogicalMessage():
                yield Unsupported(item.lsn, 0, f"message {item.prefix}")


def _truncate_event(item: Truncate) -> TruncateEvent:
    return TruncateEvent(item.commit_lsn, item.ordinal, item.tables, item.names, item.cascade, item.restart_identity)


def _rows(schema: ReplicatedTableSchema, rows: pa.RecordBatch) -> Iterator[Event]:
    columns = {c.name: _python(rows.column(c.name), c.type) for c in schema.columns}
    old = _old_columns(schema, rows)
    names = {c.attnum: c.name for c in schema.columns}
    identity = [names[a] for a in schema.identity_attnums if a in names]
    layout = rows.schema.names
    lsns, ordinals = (rows.column(n).to_pylist() for n in (COMMIT_LSN, ORDINAL))
    ops = rows.column(OP).to_pylist()
    optional: Iterator[list[Any]] = (
        rows.column(n).to_pylist() if n in layout else [None] * len(ops) for n in (OLD_KIND, UNCHANGED, UNREPRESENTABLE)
    )
    kinds, unknown, texts = optional
    for i, op in enumerate(ops):
        values = {name: column[i] for name, column in columns.items()}
        refused = {names[attnum]: text for attnum, text in texts[i] or () if attnum in names}
        place = schema, Lsn(lsns[i]), ordinals[i]
        if op == "I":
            yield Insert(*place, Full(values, refused))
        elif op == "D":
            yield Delete(*place, _old_row(kinds[i], values, identity, refused))
        else:
            unchanged = [names[a] for a in unknown[i] or () if a in names]
            before = {name: column[i] for name, column in old.items()}
            former = None if kinds[i] is None else _old_row(kinds[i], before, identity, {})
            yield Update(*place, _new_row(values, unchanged, refused), former)


def _new_row(values: dict[str, Any], unchanged: list[str], refused: Mapping[str, str]) -> Full | Partial:
    if not unchanged:
        return Full(values, refused)
    known = {name: value for name, value in values.items() if name not in unchanged}
    return Partial(known, tuple(unchanged), refused)


def _old_row(kind: str, values: dict[str, Any], identity: list[str], refused: Mapping[str, str]) -> Key | Full:
    if kind == "O":
        return Full(values, refused)
    return Key({name: values[name] for name in identity}, {n: t for n, t in refused.items() if n in identity})


def _old_columns(schema: ReplicatedTableSchema, rows: pa.RecordBatch) -> dict[str, list[Any]]:
    if OLD not in rows.schema.names:
        return {}
    struct = rows.column(OLD)
    return {c.name: _python(child, c.type) for c, child in zip(schema.columns, struct.flatten(), strict=True)}


def _python(column: pa.Array, kind: ColumnType) -> Any:
    """Return a list of Python values. Dates and times beyond Python's years are text."""
    try:
        return column.to_pylist()
    except (ValueError, OverflowError):
        if kind.parts:
            fields = [_python(f, part) for f, (_, part) in zip(column.flatten(), kind.parts, strict=True)]
            rows = (dict(zip((name for name, _ in kind.parts), row, strict=True)) for row in zip(*fields, strict=True))
            return [row if valid else None for row, valid in zip(rows, column.is_valid().to_pylist(), strict=True)]
        if kind.element is not None:
            return [_python(v.values, kind.element) if v.is_valid else None for v in column]
        return [_scalar(v, kind.kind) for v in column]


def _scalar(value: pa.Scalar, kind: Kind) -> Any:
    try:
        return value.as_py()
    except (ValueError, OverflowError):
        if kind is Kind.DATE:
            return date_text(value.value)
        return timestamp_text(value.value, zone=kind is Kind.TIMESTAMPTZ)
