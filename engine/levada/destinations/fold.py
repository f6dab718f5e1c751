"""Folds a batch of changes into the last row of each key, and the keys to delete at the destination.

An event removes a row under its *in* key, and adds a row under its *out* key. The in key of an update is the key of the
old row, that of a delete is the key of the deleted row. The out key of an insert or update is the key of the new row.
The last event of a key decides whether its row exists at the end.

An update removes the row that was added by the latest earlier event whose out key is the update's in key. If a value of
the update is unknown (unchanged TOAST), it is the value in that removed row. If it is unknown there too, the search
goes further back, to an event with a known value or to the destination's row. All events of a column are searched
together, and the distance doubles in each step (pointer jumping).

If a table keeps deleted rows, its changes have two more forms (`levada.apply.kept_rows`). An event with the operation
`KEPT` is an update under its key, which has no effect if there is no such row. An insert with an old row takes its
unknown values from the row of the event before it, which is a `KEPT` one under the old key.

This requires that a key has at most one row at any moment. PostgreSQL guarantees that for a replica identity, and for
each primary key that is not DEFERRABLE.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from levada.destinations.keys import Indices, KeyEncoder, Keys, Mask
from levada.errors import NeedsOperator
from levada.schema import ReplicatedTableSchema
from levada.schema.changes import COMMIT_LSN, OLD, OLD_KIND, OP, ORDINAL, UNCHANGED
from levada.schema.kept_rows import KEPT
from levada.values import QualifiedTable, resync_command


@dataclass(frozen=True, slots=True, eq=False)
class PartialRows:
    """Rows of `Folded.upserts` with values that are known only to the destination.

    ``rows`` has their indices in ascending order. The other fields have one entry for each of them. ``former_keys`` are
    the keys of the rows at the destination before this batch. ``columns`` maps the name of each column with unknown
    values to a mask of the rows in which it is unknown. ``optional`` is a mask of the rows that do not exist if the
    destination has no row with the former key.
    """

    rows: Indices
    former_keys: Keys
    columns: Mapping[str, Mask]
    optional: Mask

    def column_of(self, lost: Mask) -> str:
        """Return a column whose value is unknown in one of the rows of a mask."""
        return next(name for name, mask in self.columns.items() if (mask & lost).any())

    def take(self, chosen: Mask) -> PartialRows:
        """Return some of these rows."""
        columns = {name: mask[chosen] for name, mask in self.columns.items()}
        return PartialRows(self.rows[chosen], self.former_keys.take(chosen), columns, self.optional[chosen])


@dataclass(frozen=True, slots=True, eq=False)
class Folded:
    """The result of folding a batch.

    ``upserts`` are the rows that exist at the end, in WAL order, with the table's columns only. ``keys`` are their
    keys. Unknown values are NULL in ``upserts``, and ``partial_rows`` lists them. ``gone_keys`` are the other distinct
    keys of the batch, under which no row exists at the end.
    """

    upserts: pa.Table
    keys: Keys
    gone_keys: Keys
    partial_rows: PartialRows | None = None

    @property
    def affected_keys(self) -> Keys:
        """The distinct keys whose existing rows must be deleted before the upserts are written."""
        return Keys.concat([self.keys, self.gone_keys])

    def without_lost(self, found: Mask) -> Folded:
        """Return the result without the optional rows that the destination does not have.

        ``found`` has an entry for each of ``partial_rows``. The keys of the rows that are left out are gone.
        """
        partial = self.partial_rows
        if partial is None or not (lost := partial.optional & ~found).any():
            return self
        exists = np.ones(self.upserts.num_rows, np.bool_)
        exists[partial.rows[lost]] = False
        left = partial.take(~lost)
        numbers = np.cumsum(exists) - 1
        return Folded(
            self.upserts.filter(pa.array(exists)),
            self.keys.take(exists),
            Keys.concat([self.gone_keys, self.keys.take(~exists)]),
            replace(left, rows=numbers[left.rows]) if len(left.rows) else None,
        )

    def complete(self, held: pa.Table) -> pa.Table:
        """Return the upserts, with unknown values filled from the destination's rows.

        ``held`` has one row for each entry of ``partial_rows``, in the same order: the destination's row with that
        former key. It has at least the columns with unknown values, in the types of the upserts.
        """
        if self.partial_rows is None:
            return self.upserts
        upserts = self.upserts
        for name, unknown in self.partial_rows.columns.items():
            place = upserts.schema.get_field_index(name)
            source = np.arange(upserts.num_rows)
            source[self.partial_rows.rows[unknown]] = upserts.num_rows + np.flatnonzero(unknown)
            both = pa.chunked_array([*upserts.column(place).chunks, *held.column(name).chunks])
            upserts = upserts.set_column(place, upserts.field(place), both.take(source))
        return upserts


def fold(
    changes: pa.Table,
    schema: ReplicatedTableSchema,
    seed: bytes,
    *,
    truncated_before: tuple[int, int] | None = None,
) -> Folded:
    """Fold the changes of one table.

    ``changes`` have the layout of `levada.schema.changes` and are projected to ``schema``. They may be in any order.
    ``seed`` is the seed of the keys, see `levada.destinations.keys`. ``truncated_before`` is the (commit LSN, ordinal)
    of a TRUNCATE. Earlier changes are dropped, because the TRUNCATE removed those rows and all rows of the destination.
    Values that are listed in ``UNREPRESENTABLE`` are folded as NULL, so check them before.

    Raise NeedsOperator ``unknown_value`` if no event and no destination row has a value. This happens only if a row
    filter turns an UPDATE into an INSERT.
    """
    rows = _after(_in_order(changes), truncated_before)
    images = _Images.read(rows, schema)
    encoder = KeyEncoder(schema, seed)
    keys = encoder.encode_columns([images.columns[name] for name in encoder.names])
    deletes = _equals(rows, OP, "D")
    in_keys = images.in_keys(encoder, keys)
    if in_keys is keys and not images.unknown:
        last = keys.last()
        exists = np.zeros(len(keys), np.bool_)
        exists[last] = True
        exists &= ~deletes
        return Folded(_table(images.columns, exists, {}), keys.take(exists), keys.take(last[deletes[last]]))
    inserts = _equals(rows, OP, "I")
    history = _History.of(in_keys, keys, inserts, deletes)
    copies = np.flatnonzero(inserts & images.has_old)
    history.previous[copies] = copies - 1
    inserts[copies] = False
    sources, partial_rows = _resolve(images, history, in_keys, inserts, _equals(rows, OP, KEPT))
    return Folded(
        _table(images.columns, history.exists, sources), keys.take(history.exists), history.gone_keys, partial_rows
    )


def key_steps(changes: pa.Table, schema: ReplicatedTableSchema) -> tuple[pa.Table, Mask]:
    """Return the keys under which changes remove and add rows, in the order of the changes.

    ``changes`` need only the key columns and the optional columns. The result has the key columns of each step, and a
    mask of the steps that add a row. A step that adds no row removes one. Raise NeedsOperator ``unknown_value`` if a
    key is unknown.
    """
    images = _Images.read(changes, replace(schema, columns=schema.key_columns))
    new = pa.table(dict(images.columns))
    old = new
    if images.old is not None:
        has_old = pa.array(images.has_old)
        of_old = {n: pc.if_else(has_old, pc.struct_field(images.old, n), new.column(n)) for n in new.column_names}
        old = pa.table(of_old)
    removes, adds = ~_equals(changes, OP, "I"), ~_equals(changes, OP, "D")
    moments = np.flatnonzero(np.column_stack((removes, adds)))
    events, added = moments >> 1, moments % 2 == 1
    return pa.concat_tables([old, new]).take(events + added * changes.num_rows), added


@dataclass(frozen=True, slots=True, eq=False)
class _Images:
    """The table's columns after each event. Unknown values are filled from the event's old row as far as possible.

    ``unknown`` maps each column with unknown values to a mask of the events. ``has_old`` is a mask of the events with
    an old row.
    """

    table: ReplicatedTableSchema
    columns: Mapping[str, pa.ChunkedArray]
    unknown: Mapping[str, Mask]
    old: pa.ChunkedArray | None
    has_old: Mask

    @classmethod
    def read(cls, rows: pa.Table, table: ReplicatedTableSchema) -> _Images:
        columns = {c.name: rows.column(c.name) for c in table.columns}
        old, has_old = None, np.zeros(rows.num_rows, np.bool_)
        if OLD in rows.column_names and rows.column(OLD).null_count < rows.num_rows:
            old = rows.column(OLD)
            has_old = _mask(pc.is_valid(old))
        unknown: dict[str, Mask] = {}
        for attnum, missing in _unchanged(rows):
            column = table.by_attnum.get(attnum)
            if column is None:  # dropped since
                continue
            if old is not None:
                image = pc.struct_field(old, column.name)
                # A key image has only the columns of the replica identity of its time, none of which is NULL.
                known = missing & has_old & (_equals(rows, OLD_KIND, "O") | _mask(pc.is_valid(image)))
                columns[column.name] = pc.if_else(pa.array(known), image, columns[column.name])
                missing &= ~known
            if missing.any():
                unknown[column.name] = missing
        images = cls(table, columns, unknown, old, has_old)
        for column in table.key_columns:
            if column.name in unknown:
                raise images.unknown_value(column.name)
        return images

    def in_keys(self, encoder: KeyEncoder, keys: Keys) -> Keys:
        """Return the in keys of the events. If no update changes its key, return ``keys`` itself."""
        if self.old is None:
            return keys
        updates = np.flatnonzero(self.has_old)
        old = self.old.filter(pa.array(self.has_old))
        before = encoder.encode_columns([pc.struct_field(old, name) for name in encoder.names])
        moved = ~before.equal(keys.take(updates))
        return keys.replace(updates[moved], before.take(moved)) if moved.any() else keys

    def unknown_value(self, column: str) -> NeedsOperator:
        return NeedsOperator(
            "unknown_value",
            f"a change of {self.table.name} leaves the value of {column} unchanged, and that value is unknown",
            hint=f"copy the table again: {resync_command(self.table.name)}. If it has no generated column, ALTER TABLE"
            f" {self.table.name.sql} REPLICA IDENTITY FULL, also for each partition, keeps it from happening again",
        )


def row_missing(table: QualifiedTable, column: str = "a column") -> NeedsOperator:
    """Return the error of an unknown value whose row the destination does not have."""
    return NeedsOperator(
        "unknown_value",
        f"an update of {table} leaves {column} unchanged, but the row is not in the table at the destination",
        hint=f"copy the table again: {resync_command(table)}",
    )


@dataclass(frozen=True, slots=True, eq=False)
class _History:
    """The order of the events of each key.

    ``gone_keys`` are the distinct keys under which no row exists at the end. ``exists`` is a mask of the events whose
    rows exist at the end. ``previous`` is the index of the event that added
    the row which an event removes, or -1 if it is the destination's row. ``orphaned`` is a mask of the events that
    remove a row which an earlier event of the batch had already removed.
    """

    gone_keys: Keys
    exists: Mask
    previous: Indices
    orphaned: Mask

    @classmethod
    def of(cls, in_keys: Keys, out_keys: Keys, inserts: Mask, deletes: Mask) -> _History:
        # At the moment 2e, event e removes a row. At the moment 2e + 1 it adds one.
        moments = np.flatnonzero(np.column_stack((~inserts, ~deletes)))
        keys = Keys.interleave(in_keys, out_keys).take(moments)
        order = keys.order(stable=True)
        keys, moments = keys.take(order), moments[order]
        starts = keys.starts()
        events, puts = moments >> 1, moments % 2 == 1

        ends = np.append(starts[1:], True)[: len(puts)]
        exists = np.zeros(len(inserts), np.bool_)
        exists[events[puts & ends]] = True

        followers = np.flatnonzero(~starts & ~puts)
        taken, was_put = events[followers], puts[followers - 1]
        previous = np.full(len(inserts), -1)
        previous[taken[was_put]] = events[followers - 1][was_put]
        orphaned = np.zeros(len(inserts), np.bool_)
        orphaned[taken[~was_put]] = True
        return cls(keys.take(ends & ~puts), exists, previous, orphaned)


def _resolve(
    images: _Images, history: _History, in_keys: Keys, inserts: Mask, kept: Mask
) -> tuple[dict[str, Indices], PartialRows | None]:
    """Return the events that have the unknown values, and the rows for which no event has them.

    The first result maps each column with unknown values to the index of an event for each last row.
    """
    rows = np.flatnonzero(history.exists)
    without_former_row = inserts | history.orphaned
    sources: dict[str, Indices] = {}
    missing: dict[str, Mask] = {}
    root = rows.copy()
    for name, unknown in images.unknown.items():
        source = _known_at(unknown, history.previous)[rows]
        lacking = unknown[source]
        if (lacking & without_former_row[source]).any():
            raise images.unknown_value(name)
        if lacking.any():
            missing[name] = lacking
            root[lacking] = source[lacking]
        sources[name] = source
    if not missing:
        return sources, None
    anywhere = np.flatnonzero(np.logical_or.reduce(list(missing.values())))
    former_keys = in_keys.take(root[anywhere])
    optional = kept[rows[anywhere]]
    return sources, PartialRows(anywhere, former_keys, {n: m[anywhere] for n, m in missing.items()}, optional)


def _known_at(unknown: Mask, previous: Indices) -> Indices:
    """Return the nearest event with a known value, for each event, searching back along the history of its row.

    If no event has the value, return the first event of that history.
    """
    source = np.where(unknown & (previous >= 0), previous, np.arange(len(unknown)))
    while True:
        further = source[source]
        if np.array_equal(further, source):
            return source
        source = further


def _table(columns: Mapping[str, pa.ChunkedArray], exists: Mask, sources: Mapping[str, Indices]) -> pa.Table:
    """Return the rows that exist at the end. Values of columns in ``sources`` come from the events listed there."""
    every, mask = bool(exists.all()), pa.array(exists)
    return pa.table(
        {n: c.take(sources[n]) if n in sources else c if every else c.filter(mask) for n, c in columns.items()}
    )


def _in_order(changes: pa.Table) -> pa.Table:
    """Return the changes in WAL order."""
    lsn, ordinal = (changes.column(n).to_numpy() for n in (COMMIT_LSN, ORDINAL))
    later = (lsn[1:] > lsn[:-1]) | ((lsn[1:] == lsn[:-1]) & (ordinal[1:] >= ordinal[:-1]))
    return changes if later.all() else changes.take(np.lexsort((ordinal, lsn)))


def _after(rows: pa.Table, position: tuple[int, int] | None) -> pa.Table:
    """Return the rows that are not before the position. ``rows`` are in WAL order."""
    if position is None:
        return rows
    lsn, ordinal = (rows.column(n).to_numpy() for n in (COMMIT_LSN, ORDINAL))
    before = (lsn < position[0]) | ((lsn == position[0]) & (ordinal < position[1]))
    return rows.slice(int(before.sum()))


def _unchanged(rows: pa.Table) -> Iterator[tuple[int, Mask]]:
    """Yield the attnum of each column with unknown values, and a mask of the events in which it is unknown."""
    if UNCHANGED not in rows.column_names or rows.column(UNCHANGED).null_count == rows.num_rows:
        return
    lists = rows.column(UNCHANGED)
    attnums = pc.list_flatten(lists).to_numpy()
    events = np.repeat(np.arange(rows.num_rows), pc.fill_null(pc.list_value_length(lists), 0).to_numpy())
    for attnum in np.unique(attnums):
        missing = np.zeros(rows.num_rows, np.bool_)
        missing[events[attnums == attnum]] = True
        yield int(attnum), missing


def _equals(rows: pa.Table, column: str, value: str) -> Mask:
    return _mask(pc.fill_null(pc.equal(rows.column(column), value), False))


def _mask(values: Any) -> Mask:
    mask: Mask = values.to_numpy()
    return mask
