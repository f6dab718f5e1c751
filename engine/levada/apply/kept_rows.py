"""The changes of a table that keeps the rows which the source deletes.

A delete becomes an update of the mark alone (`Deletes.MARK`), or is left out (`Deletes.IGNORE`). So a destination needs
no rule for kept rows: it folds changes with other operations, see `levada.destinations.fold`.

An UPDATE of a key is a delete of the former key and an insert of the new one, which takes the values that the stream
does not have from the former row. A TRUNCATE is a delete of each row, whose keys `levada.apply.moves` reads from the
destination.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from levada.destinations.keys import Indices, KeyEncoder, Mask, new_seed
from levada.pgoutput.events import Event
from levada.schema import ReplicatedTableSchema
from levada.schema.changes import COMMIT_TS, OLD, OLD_KIND, OP, UNCHANGED, UNREPRESENTABLE
from levada.schema.kept_rows import DELETED_AT, KEPT, with_deleted_at
from levada.segments.batch import EventBatch, TableEvents, WrappedEvents
from levada.segments.files import SegmentFile
from levada.segments.projection import layout
from levada.values import Deletes, TableId

_OPERATIONS: Final = pa.array([KEPT, "I"])
_NEEDED: Final = (OP, COMMIT_TS, OLD_KIND, OLD, UNCHANGED)


class KeptEvents(WrappedEvents):
    """The changes of a table with `KEPT` in place of deletes, or without these. It has no truncates.

    ``now`` is the time of deletes whose commit time is unknown, those of partitions that are gone.
    """

    def __init__(self, inner: TableEvents, now: datetime | None = None) -> None:
        super().__init__(inner)
        self._now = now or datetime.now(UTC)
        self._marks = inner.target.deletes is Deletes.MARK
        if self._marks:
            self.target = inner.target.with_schema(with_deleted_at(inner.schema))
            self.versions = tuple(map(with_deleted_at, inner.versions))
        self.truncates = ()

    def part(self, files: Sequence[SegmentFile], share: tuple[int, int] = (0, 1)) -> KeptEvents | None:
        """Return the changes in some files of the batch, None if they can be read only in this process."""
        part = self._inner.part(files, share)
        return None if part is None else KeptEvents(part, self._now)

    def scan(
        self, columns: Sequence[str] | None = None, *, files: Sequence[SegmentFile] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the changes in WAL order, as `TableEvents.scan` does. The changes of one row are in one batch."""
        names = layout(self.schema).names if columns is None else list(columns)
        keys = (c.name for c in self.schema.key_columns)
        wanted = list(dict.fromkeys((*(n for n in names if n != DELETED_AT), *keys, *_NEEDED)))
        for rows in self._inner.scan(wanted, files=files):
            kept = _Changes.of(rows, self._inner.schema, marks=self._marks)
            if len(kept.events):
                yield kept.batch(names, self._now)
        self.nulled = self._inner.nulled


class KeptBatch(EventBatch):
    """A batch of tables that keep deleted rows. It cannot be read as events."""

    def __init__(self, inner: EventBatch) -> None:
        self.tables, self.until = inner.tables, inner.until
        changes = {table: inner.changes(table) for table in inner.tables}
        self._changes = {t: c if c.target.deletes is Deletes.APPLY else KeptEvents(c) for t, c in changes.items()}

    def changes(self, table: TableId) -> TableEvents:
        """Return the changes of one table of ``tables``."""
        return self._changes[table]

    def __iter__(self) -> Iterator[Event]:
        raise NotImplementedError("a destination with the capability keeps_deleted reads changes as Arrow data")


@dataclass(frozen=True, slots=True, eq=False)
class _Changes:
    """A batch of changes, and what becomes of them.

    ``events`` has the index of the change of ``rows`` that each result comes from. ``kept`` is a mask of the results
    that keep a row. ``from_old`` is a mask of those of updates that change the key, and ``added`` of their new rows.
    """

    rows: pa.RecordBatch
    schema: ReplicatedTableSchema
    events: Indices
    kept: Mask
    from_old: Mask
    added: Mask

    @classmethod
    def of(cls, rows: pa.RecordBatch, schema: ReplicatedTableSchema, *, marks: bool) -> _Changes:
        deletes = _mask(pc.equal(rows.column(OP), "D"))
        moves = _moves(rows, schema)
        times = np.ones(rows.num_rows, np.int64)
        times[moves] = 2
        if not marks:
            times[deletes] = 0
        events = np.repeat(np.arange(rows.num_rows), times)
        first = np.ones(len(events), np.bool_)
        first[1:] = events[1:] != events[:-1]
        from_old, added = moves[events] & first, moves[events] & ~first
        return cls(rows, schema, events, from_old | deletes[events], from_old, added)

    def batch(self, names: Sequence[str], now: datetime) -> pa.RecordBatch:
        """Return the columns with these names."""
        if not self.kept.any():
            found: dict[str, pa.Array] = dict(zip(self.rows.schema.names, self.rows.columns, strict=True))
            if len(self.events) < self.rows.num_rows:
                found = {name: array.take(pa.array(self.events)) for name, array in found.items()}
            if DELETED_AT in names:
                found[DELETED_AT] = pa.nulls(len(self.events), self.rows.column(COMMIT_TS).type)
            return pa.RecordBatch.from_arrays([found[name] for name in names], names=list(names))
        return pa.RecordBatch.from_arrays([self._column(name, now) for name in names], names=list(names))

    def _column(self, name: str, now: datetime) -> pa.Array:
        count, by_name = self.rows.num_rows, {c.name: c for c in self.schema.columns}
        if name == DELETED_AT:
            times = self.rows.column(COMMIT_TS)
            return pc.fill_null(times, pa.scalar(now, times.type)).take(pa.array(self.events, mask=~self.kept))
        values = self.rows.column(name)
        if name == OP:
            places = np.where(self.kept, count, np.where(self.added, count + 1, self.events))
            return pa.concat_arrays([values, _OPERATIONS]).take(pa.array(places))
        if name == UNCHANGED:
            others = [[c.attnum for c in self.schema.columns if c.attnum not in self.schema.key]]
            lists = pa.array(others, values.type)
            return pa.concat_arrays([values, lists]).take(pa.array(np.where(self.kept, count, self.events)))
        if name in by_name and by_name[name].attnum in self.schema.key:
            if not self.from_old.any():
                return values.take(pa.array(self.events))
            both = pa.concat_arrays([values, pc.struct_field(self.rows.column(OLD), name)])
            return both.take(pa.array(self.events + self.from_old * count))
        if name in by_name or name in (OLD, OLD_KIND, UNREPRESENTABLE):
            return values.take(pa.array(self.events, mask=self.kept))
        return values.take(pa.array(self.events))


def _moves(rows: pa.RecordBatch, schema: ReplicatedTableSchema) -> Mask:
    """Return a mask of the updates that change the key. One whose key is unchanged and has an old row may be in it."""
    old = rows.column(OLD)
    if old.null_count == rows.num_rows:
        return np.zeros(rows.num_rows, np.bool_)
    found = pa.repeat(pa.scalar(False), rows.num_rows)
    for column in schema.key_columns:
        of_key = replace(schema, key=(column.attnum,))
        differs = _differ(rows.column(column.name), pc.struct_field(old, column.name), of_key)
        found = pc.or_(found, pc.fill_null(differs, False))
    return _mask(found)


def _differ(new: pa.Array, old: pa.Array, of_key: ReplicatedTableSchema) -> pa.Array:
    """Return where the values of the only key column differ, NULL where one of them is."""
    if not pa.types.is_nested(new.type):
        return pc.not_equal(new, old)
    # Arrow compares no lists.
    encoder = KeyEncoder(of_key, new_seed())
    same = encoder.encode_columns([new]).equal(encoder.encode_columns([old]))
    return pa.array(~same, mask=_mask(pc.or_(pc.is_null(new), pc.is_null(old))))


def _mask(values: pa.Array) -> Mask:
    mask: Mask = pc.fill_null(values, False).to_numpy(zero_copy_only=False)
    return mask


def kept_batch(batch: EventBatch) -> EventBatch:
    """Return the batch as a destination gets it: without deletes for the tables that keep the rows."""
    keep = any(batch.changes(table).target.deletes is not Deletes.APPLY for table in batch.tables)
    return KeptBatch(batch) if keep else batch
