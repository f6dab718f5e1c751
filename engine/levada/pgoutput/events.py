"""Changes as Python objects, for callers that need rows: a lazy view over the Arrow columns.

The names are supabase/etl's. The order is that of ``(commit_lsn, ordinal)``, and each transaction's events are
between a `Begin` and a `Commit`. The engine itself never creates these objects.
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
    """The beginning of a transaction. ``commit_ts_us`` is in microseconds since 1970-01-01 UTC."""

    commit_lsn: Lsn
    ordinal: int
    commit_ts_us: int
    xid: int


@dataclass(frozen=True, slots=True)
class Commit:
    """The end of a transaction. ``ordinal`` is that of its last change plus one."""

    commit_lsn: Lsn
    ordinal: int
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


def iter_events(streams: Iterable[Iterable[Item]]) -> Iterator[Event]:
    """Yield the events of several streams of items, merged into one order. Each stream must be in order.

    Every transaction must be complete: a divided one would begin twice. Items are read lazily.
    """
    placed = heapq.merge(*map(_placed, streams), key=lambda p: p.place)
    for _, transaction in itertools.groupby(placed, key=lambda p: p.event.commit_lsn):
        yield from _bounded(transaction)


def batch_events(batch: ChangeBatch) -> Iterator[Event]:
    """Return an iterator over the events of a decoded slice."""
    return iter_events([item] for item in batch.items)


@dataclass(frozen=True, slots=True)
class _Placed:
    """An event with its transaction's commit time and xid. They are None if only neighbouring events have them."""

    event: Event
    transaction: tuple[int, int] | None = None

    @property
    def place(self) -> tuple[int, int, bool]:
        # A relation has the ordinal of the row that follows it.
        return self.event.commit_lsn, self.event.ordinal, not isinstance(self.event, RelationEvent)


def _bounded(events: Iterator[_Placed]) -> Iterator[Event]:
    """Yield a transaction's events between its `Begin` and its `Commit`."""
    leading: list[Event] = []
    for first in events:
        leading.append(first.event)
        if first.transaction is not None:
            break
    else:
        yield from leading
        return
    lsn, end, (commit_ts_us, xid) = first.event.commit_lsn, first.event.ordinal + 1, first.transaction
    yield Begin(lsn, 0, commit_ts_us, xid)
    yield from leading
    for placed in events:
        if placed.transaction is not None:
            end = placed.event.ordinal + 1
        yield placed.event
    yield Commit(lsn, end, commit_ts_us, xid)


def _placed(items: Iterable[Item]) -> Iterator[_Placed]:
    for item in items:
        match item:
            case TableChanges():
                for first in range(0, item.rows.num_rows, _CHUNK):
                    yield from _rows(item.schema, item.rows.slice(first, _CHUNK))
            case Truncate():
                yield _Placed(_truncate_event(item), (item.commit_ts_us, item.xid))
            case RelationChange():
                yield _Placed(RelationEvent(item.schema, item.commit_lsn, item.ordinal))
            case LogicalMessage():
                yield _Placed(Unsupported(item.lsn, 0, f"message {item.prefix}"))


def _truncate_event(item: Truncate) -> TruncateEvent:
    return TruncateEvent(item.commit_lsn, item.ordinal, item.tables, item.names, item.cascade, item.restart_identity)


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
    """Return a list of Python values. Dates and times beyond Python's years are text."""
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
