"""A batch in which rows leave a table with their partition.

PostgreSQL does not stream these rows. So their keys are read from the table at the destination, and come as ordinary
deletes between the changes before the statement and those after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from levada.destinations import Destination
from levada.destinations.fold import fold
from levada.destinations.keys import KeyEncoder, new_seed
from levada.destinations.regions import deciding_columns, is_in
from levada.errors import NeedsOperator
from levada.pgoutput.events import Event
from levada.schema import ReplicatedTableSchema
from levada.schema.changes import COMMIT_LSN, COMMIT_TS, OLD, OLD_KIND, OP, ORDINAL, UNCHANGED, XID
from levada.schema.partitions import Removal
from levada.segments.batch import EventBatch, TableEvents
from levada.segments.files import SegmentFile
from levada.segments.projection import layout
from levada.segments.staged import StagedBatch
from levada.values import Lsn, TableId, resync_command

_MOST_BYTES: Final = 512 << 20
"""The most bytes of keys that one removal may have in memory."""
_BATCH_ROWS: Final = 131_072


@dataclass(frozen=True, slots=True)
class RemovalPart:
    """The changes of a table that a removal is a part of. ``at`` and ``ordinal`` are those of `Removal`."""

    inner: TableEvents
    at: Lsn
    ordinal: int

    def split(self, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Return the changes before the removal and those after it."""
        lsn, ordinal = rows.column(COMMIT_LSN), rows.column(ORDINAL)
        same = pc.and_(pc.equal(lsn, int(self.at)), pc.less(ordinal, self.ordinal))
        before = pc.or_(pc.less(lsn, int(self.at)), same)
        return rows.filter(before), rows.filter(pc.invert(before))

    def before(self, columns: Sequence[str]) -> pa.Table | None:
        """Return the changes before the removal, None without any."""
        parts = [self.split(rows)[0] for rows in self.inner.scan(columns)]
        found = [part for part in parts if part.num_rows]
        return pa.Table.from_batches(found) if found else None


class RemovalEvents(TableEvents):
    """The changes of a table, and the deletes of ``keys`` at the place of the removal."""

    def __init__(self, part: RemovalPart, keys: pa.Table) -> None:
        inner = self._inner = part.inner
        self._part, self._keys = part, keys
        self.target, self.versions, self.files = inner.target, inner.versions, inner.files
        self.truncates, self.after, self.until, self.limits = inner.truncates, inner.after, inner.until, inner.limits

    @property
    def rows(self) -> int:
        """The number of row changes and deletes, an upper bound."""
        return self._inner.rows + int(self._keys.num_rows)

    def scan(
        self, columns: Sequence[str] | None = None, *, files: Sequence[SegmentFile] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the changes in WAL order, as `TableEvents.scan` does, and the deletes between them."""
        # The columns that show the place of a change may not be among those that the caller wants.
        wanted = None if columns is None else [*columns, *({COMMIT_LSN, ORDINAL} - set(columns))]
        deleted = False
        for rows in self._inner.scan(wanted, files=files):
            before, later = self._part.split(rows)
            if before.num_rows:
                yield _selected(before, columns)
            if later.num_rows and not deleted:
                deleted = True
                yield from self._deletes(columns)
            if later.num_rows:
                yield _selected(later, columns)
        self.nulled = self._inner.nulled
        if not deleted:
            yield from self._deletes(columns)

    def _deletes(self, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        form = layout(self.schema)
        chosen = form if columns is None else pa.schema([form.field(name) for name in columns])
        for keys in self._keys.to_batches(_BATCH_ROWS):
            known = {
                **{name: keys.column(name) for name in keys.schema.names},
                OP: pa.repeat(pa.scalar("D"), keys.num_rows),
                COMMIT_LSN: pa.repeat(pa.scalar(int(self._part.at), pa.int64()), keys.num_rows),
                ORDINAL: pa.repeat(pa.scalar(self._part.ordinal, pa.int64()), keys.num_rows),
                COMMIT_TS: pa.nulls(keys.num_rows, form.field(COMMIT_TS).type),
                XID: pa.nulls(keys.num_rows, pa.int64()),
            }
            arrays = [known[f.name] if f.name in known else pa.nulls(keys.num_rows, f.type) for f in chosen]
            yield pa.RecordBatch.from_arrays(arrays, schema=chosen)


class RemovalBatch(EventBatch):
    """The changes of a transaction, with all removals that it has, in order. It cannot be read as events."""

    def __init__(self, batch: StagedBatch, removals: Sequence[Removal], destination: Destination) -> None:
        (table,) = self.tables = batch.tables
        self.until = batch.until
        events: TableEvents = batch.changes(table)
        for removal in removals:
            # What an earlier removal deletes is a change before the later one.
            part = RemovalPart(events, removal.at, removal.ordinal)
            events = RemovalEvents(part, _keys_to_delete(part, removal, destination))
        self._events = events

    def changes(self, table: TableId) -> TableEvents:
        """Return the changes of the table."""
        return self._events

    def __iter__(self) -> Iterator[Event]:
        raise NotImplementedError("a destination with the capability finds_rows reads changes as Arrow data")


def _keys_to_delete(part: RemovalPart, removal: Removal, destination: Destination) -> pa.Table:
    """Return the keys of the rows that are in the region before the removal, each once."""
    schema = part.inner.schema
    deciding = deciding_columns(removal.region, schema)
    names = [c.name for c in schema.key_columns]
    held = _collected(destination.keys_in(part.inner.target, removal.region), schema, names)
    narrow = replace(schema, columns=tuple(c for c in schema.columns if c in deciding or c.attnum in schema.key))
    shown = {c.name for c in narrow.columns} | {OP, COMMIT_LSN, ORDINAL, OLD_KIND, OLD, UNCHANGED}
    changes = part.before([name for name in layout(schema).names if name in shown])
    if changes is None:
        return held
    seed = new_seed()
    folded = fold(changes, narrow, seed)
    if folded.partial_rows is not None:
        raise _unremovable(schema, "a change in the same transaction leaves a column of the partition key unchanged")
    mask = is_in(
        removal.region, narrow, {c.attnum: folded.upserts.column(c.name) for c in deciding}, folded.upserts.num_rows
    )
    keys = KeyEncoder(narrow, seed).encode(held)
    touched = keys.find(folded.affected_keys)
    untouched = np.ones(held.num_rows, np.bool_)
    untouched[touched] = False
    # What the transaction did to the other rows before the removal decides whether they are in the region.
    return pa.concat_tables([held.filter(pa.array(untouched)), folded.upserts.select(names).filter(mask)])


def _collected(batches: Iterable[pa.RecordBatch], schema: ReplicatedTableSchema, names: list[str]) -> pa.Table:
    form = pa.schema([schema.arrow.field(name) for name in names])
    found: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        found.append(batch)
        size += batch.nbytes
        if size > _MOST_BYTES:
            raise _unremovable(schema, f"their keys have more than {_MOST_BYTES >> 20} MiB")
    return pa.Table.from_batches(found, form)


def _unremovable(schema: ReplicatedTableSchema, why: str) -> NeedsOperator:
    return NeedsOperator(
        "partition_changed",
        f"table {schema.name}: the rows of a partition cannot be removed: {why}",
        hint=resync_command(schema.name),
    )


def _selected(rows: pa.RecordBatch, columns: Sequence[str] | None) -> pa.RecordBatch:
    return rows if columns is None else rows.select(list(columns))
