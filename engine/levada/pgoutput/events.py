"""Changes as Python objects, for those who want rows: a lazy view over the Arrow columns.

Names are supabase/etl's. The order is that of ``(commit_lsn, tx_ordinal)``, and each transaction's events stand between
a `Begin` and a `Commit`. The engine's own path never makes one of these.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import pyarrow as pa

from levada.pgoutput.changes import ChangeBatch, LogicalMessage, RelationChange, TableChanges, Truncate
from levada.pgoutput.temporal import date_text, timestamp_text
from levada.schema import ColumnType, Kind, ReplicatedTableSchema
from levada.schema.changes import (
    COMMIT_LSN,
    COMMIT_TS,
    OLD,
    OLD_KIND,
    OP,
    ORDINAL,
    UNCHANGED,
    UNREPRESENTABLE,
    XID,
)
from levada.values import Lsn, TableId

Row: TypeAlias = Mapping[str, Any]
"""Values by column name, as `pyarrow` hands them to Python; dates beyond Python's years are PostgreSQL's text."""

_CHUNK: Final = 1024
"""Rows that are made into Python objects at a time."""


@dataclass(frozen=True, slots=True)
class Full:
    """A whole row; ``unrepresentable`` has PostgreSQL's text of values that are None for want of a type."""

    values: Row
    unrepresentable: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Partial:
    """A row but for the columns ``unchanged``, whose TOASTed values were not sent and are not in ``values``."""

    values: Row
    unchanged: tuple[str, ...]
    unrepresentable: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Key:
    """What the replica identity tells of an old row: its columns, and no others."""

    values: Row
    unrepresentable: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Begin:
    """A transaction begins; ``commit_ts_us`` is in microseconds since 1970-01-01 UTC."""

    commit_lsn: Lsn
    tx_ordinal: int
    commit_ts_us: int
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """A transaction is complete; ``tx_ordinal`` is one more than its last change's."""

    commit_lsn: Lsn
    tx_ordinal: int
    commit_ts_us: int
    xid: int


@dataclass(frozen=True, slots=True)
class Insert:
    """A new row."""

    schema: ReplicatedTableSchema
    commit_lsn: Lsn
    tx_ordinal: int
    row: Full


@dataclass(frozen=True, slots=True)
class Update:
    """A changed row; ``old`` is None where the key is the same and the identity is not FULL."""

    schema: ReplicatedTableSchema
    commit_lsn: Lsn
    tx_ordinal: int
    row: Full | Partial
    old: Key | Full | None


@dataclass(frozen=True, slots=True)
class Delete:
    """A row that is gone."""

    schema: ReplicatedTableSchema
    commit_lsn: Lsn
    tx_ordinal: int
    old: Key | Full


@dataclass(frozen=True, slots=True)
class TruncateEvent:
    """All rows of ``tables`` are gone."""

    commit_lsn: Lsn
    tx_ordinal: int
    tables: tuple[TableId, ...]
    cascade: bool
    restart_identity: bool


@dataclass(frozen=True, slots=True)
class RelationEvent:
    """Rows of the table that follow have this schema."""

    schema: ReplicatedTableSchema
    commit_lsn: Lsn
    tx_ordinal: int


@dataclass(frozen=True, slots=True)
class Unsupported:
    """Something in the stream that no other event tells: a logical message, by its prefix.

    ``commit_lsn`` is where the message was emitted.
    """

    commit_lsn: Lsn
    tx_ordinal: int
    what: str


Event: TypeAlias = Begin | Commit | Insert | Update | Delete | TruncateEvent | RelationEvent | Unsupported
Item: TypeAlias = TableChanges | Truncate | RelationChange | LogicalMessage


def iter_events(streams: Iterable[Iterable[Item]]) -> Iterator[Event]:
    """Walk the events of several streams of items, each in order itself, merged into one order.

    Transactions must be whole: one that is cut begins twice. Items are read as the walk gets to them.
    """
    placed = heapq.merge(*map(_placed, streams), key=lambda p: p.place)
    for _, transaction in itertools.groupby(placed, key=lambda p: p.event.commit_lsn):
        yield from _bounded(transaction)


def batch_events(batch: ChangeBatch) -> Iterator[Event]:
    """Walk the events of a decoded slice."""
    return iter_events([item] for item in batch.items)


@dataclass(frozen=True, slots=True)
class _Placed:
    """An event and its transaction's time and xid; None: only the events beside it tell them."""

    event: Event
    transaction: tuple[int, int] | None = None

    @property
    def place(self) -> tuple[int, int, bool]:
        # A relation has the number of the row that follows it.
        return self.event.commit_lsn, self.event.tx_ordinal, not isinstance(self.event, RelationEvent)


def _bounded(events: Iterator[_Placed]) -> Iterator[Event]:
    """Put a transaction's events between its `Begin` and its `Commit`."""
    leading: list[Event] = []
    for first in events:
        leading.append(first.event)
        if first.transaction is not None:
            break
    else:
        yield from leading
        return
    lsn, end, (commit_ts_us, xid) = first.event.commit_lsn, first.event.tx_ordinal + 1, first.transaction
    yield Begin(lsn, 0, commit_ts_us, xid)
    yield from leading
    for placed in events:
        if placed.transaction is not None:
            end = placed.event.tx_ordinal + 1
        yield placed.event
    yield Commit(lsn, end, commit_ts_us, xid)


def _placed(items: Iterable[Item]) -> Iterator[_Placed]:
    for item in items:
        match item:
            case TableChanges():
                for first in range(0, item.rows.num_rows, _CHUNK):
                    yield from _rows(item.schema, item.rows.slice(first, _CHUNK))
            case Truncate():
                event = TruncateEvent(item.commit_lsn, item.ordinal, item.tables, item.cascade, item.restart_identity)
                yield _Placed(event, (item.commit_ts_us, item.xid))
            case RelationChange():
                yield _Placed(RelationEvent(item.schema, item.commit_lsn, item.ordinal))
            case LogicalMessage():
                yield _Placed(Unsupported(item.lsn, 0, f"message {item.prefix}"))


def _rows(schema: ReplicatedTableSchema, rows: pa.RecordBatch) -> Iterator[_Placed]:
    columns = {c.name: _python(rows.column(c.name), c.type) for c in schema.columns}
    old = _old_columns(schema, rows)
    names = {c.attnum: c.name for c in schema.columns}
    identity = [names[a] for a in schema.identity_attnums if a in names]
    layout = rows.schema.names
    lsns, ordinals, xids = (rows.column(n).to_pylist() for n in (COMMIT_LSN, ORDINAL, XID))
    times = rows.column(COMMIT_TS).view(pa.int64()).to_pylist()
    ops = rows.column(OP).to_pylist()
    optional: Iterator[list[Any]] = (
        rows.column(n).to_pylist() if n in layout else [None] * len(ops) for n in (OLD_KIND, UNCHANGED, UNREPRESENTABLE)
    )
    kinds, unknown, texts = optional
    for i, op in enumerate(ops):
        values = {name: column[i] for name, column in columns.items()}
        refused = {names[attnum]: text for attnum, text in texts[i] or () if attnum in names}
        place = schema, Lsn(lsns[i]), ordinals[i]
        event: Event
        if op == "I":
            event = Insert(*place, Full(values, refused))
        elif op == "D":
            event = Delete(*place, _old_row(kinds[i], values, identity, refused))
        else:
            unchanged = [names[a] for a in unknown[i] or () if a in names]
            before = {name: column[i] for name, column in old.items()}
            former = None if kinds[i] is None else _old_row(kinds[i], before, identity, {})
            event = Update(*place, _new_row(values, unchanged, refused), former)
        yield _Placed(event, (times[i], xids[i]))


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
    """Return a list of Python values; dates and times as text where Python's years do not reach."""
    try:
        return column.to_pylist()
    except (ValueError, OverflowError):
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
