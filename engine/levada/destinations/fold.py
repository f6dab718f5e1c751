"""Folding: the changes of a batch to one last row per key, and what a destination must do for it.

An event takes a row from under its *in* key (an update: the old row's key, a delete: its own) and puts one under its
*out* key (an insert, an update: the new row's). A key's last event decides whether its row exists at the end. The row
that an update takes is the one that the latest earlier event with that out key put; a value that an update leaves
unknown (unchanged TOAST) is the one of that row, and so on back to an event that knows, or to the row that the
destination holds. Whole columns of events step back at once, twice as far each time (pointer jumping).

This is right as long as a key has at most one row at any moment, which PostgreSQL promises of a replica identity and of
every primary key that is not DEFERRABLE.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from levada.destinations.keys import Indices, KeyEncoder, Keys, Mask
from levada.errors import NeedsOperator
from levada.schema import ReplicatedTableSchema
from levada.schema.changes import COMMIT_LSN, OLD, OLD_KIND, OP, ORDINAL, UNCHANGED


@dataclass(frozen=True, slots=True, eq=False)
class Incomplete:
    """Rows of `Folded.upserts` with values that the destination alone has.

    ``rows`` are their indices, ascending. The others are aligned with them: ``origin``, the key under which the
    destination held the row before this batch, and for each column with unknown values where it is unknown.
    """

    rows: Indices
    origin: Keys
    columns: Mapping[str, Mask]


@dataclass(frozen=True, slots=True, eq=False)
class Folded:
    """What a batch comes to.

    ``upserts`` are the rows that exist at the end, the table's columns only, in WAL order, and ``keys`` their keys;
    values that are not known yet are NULL there and told in ``incomplete``. ``touched`` has every key once whose row,
    if the destination has one, must go before the upserts come: of updated, deleted, moved and inserted rows.
    """

    upserts: pa.Table
    keys: Keys
    touched: Keys
    incomplete: Incomplete | None = None

    def complete(self, held: pa.Table) -> pa.Table:
        """Return the upserts with their unknown values taken from the destination's rows.

        ``held`` has, for each of ``incomplete.rows`` in order, the row found under its ``origin``; at least the columns
        that are unknown somewhere, typed as the upserts are.
        """
        if self.incomplete is None:
            return self.upserts
        upserts = self.upserts
        for name, unknown in self.incomplete.columns.items():
            place = upserts.schema.get_field_index(name)
            source = np.arange(upserts.num_rows)
            source[self.incomplete.rows[unknown]] = upserts.num_rows + np.flatnonzero(unknown)
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
    """Fold changes of one table, laid out as `levada.schema.changes` says and projected to ``schema``.

    ``seed`` is that of the keys, see `levada.destinations.keys`. Rows may be in any order. Those before
    ``truncated_before``, a (commit LSN, ordinal), are left out: a TRUNCATE took them with all that the destination
    holds. Values told in ``UNREPRESENTABLE`` count as the NULL that their column holds: judge them before. Raise
    NeedsOperator (``unknown_value``) for a value that nobody knows, as the stream cannot have it unless a row filter
    made an INSERT of an UPDATE.
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
        return Folded(_table(images.columns, exists, {}), keys.take(exists), keys.take(last))
    inserts = _equals(rows, OP, "I")
    history = _History.of(in_keys, keys, inserts, deletes)
    sources, incomplete = _resolve(images, history, in_keys, inserts)
    return Folded(
        _table(images.columns, history.exists, sources), keys.take(history.exists), history.touched, incomplete
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Images:
    """The table's columns after each event, with what the event's own old image knows filled in.

    ``unknown`` has the columns with any unknown value, as masks over the events; ``has_old`` the updates with an image.
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
                known = missing & has_old
                if attnum not in table.identity_attnums:
                    known &= _equals(rows, OLD_KIND, "O")
                image = pc.struct_field(old, column.name)
                columns[column.name] = pc.if_else(pa.array(known), image, columns[column.name])
                missing &= ~known
            if missing.any():
                unknown[column.name] = missing
        images = cls(table, columns, unknown, old, has_old)
        for column in table.key_columns:
            if column.name in unknown:
                raise images.nobody_knows(column.name)
        return images

    def in_keys(self, encoder: KeyEncoder, keys: Keys) -> Keys:
        """Return the keys from under which the events take rows; ``keys`` itself if no update changed its key."""
        if self.old is None:
            return keys
        updates = np.flatnonzero(self.has_old)
        old = self.old.filter(pa.array(self.has_old))
        before = encoder.encode_columns([pc.struct_field(old, name) for name in encoder.names])
        moved = ~before.equal(keys.take(updates))
        return keys.replace(updates[moved], before.take(moved)) if moved.any() else keys

    def nobody_knows(self, column: str) -> NeedsOperator:
        return NeedsOperator(
            "unknown_value",
            f"a change of {self.table.name} leaves {column} as it was, but no row tells what that is",
            hint=f"ALTER TABLE {self.table.name} REPLICA IDENTITY FULL; then copy the table again",
        )


@dataclass(frozen=True, slots=True, eq=False)
class _History:
    """How events follow one another by their keys.

    ``exists`` tells which events' rows are there at the end. ``previous`` is the event whose row an event takes, -1
    if that is the destination's; ``severed`` are events that take a row that an earlier one of the batch removed.
    """

    touched: Keys
    exists: Mask
    previous: Indices
    severed: Mask

    @classmethod
    def of(cls, in_keys: Keys, out_keys: Keys, inserts: Mask, deletes: Mask) -> _History:
        # The moment 2e is when event e takes a row, 2e + 1 when it puts one.
        moments = np.flatnonzero(np.column_stack((~inserts, ~deletes)))
        keys = Keys.interleave(in_keys, out_keys).take(moments)
        order = keys.order(stable=True)
        keys, moments = keys.take(order), moments[order]
        starts = keys.starts()
        events, puts = moments >> 1, moments % 2 == 1

        exists = np.zeros(len(inserts), np.bool_)
        exists[events[puts & np.append(starts[1:], True)[: len(puts)]]] = True

        followers = np.flatnonzero(~starts & ~puts)
        taken, was_put = events[followers], puts[followers - 1]
        previous = np.full(len(inserts), -1)
        previous[taken[was_put]] = events[followers - 1][was_put]
        severed = np.zeros(len(inserts), np.bool_)
        severed[taken[~was_put]] = True
        return cls(keys.take(starts), exists, previous, severed)


def _resolve(
    images: _Images, history: _History, in_keys: Keys, inserts: Mask
) -> tuple[dict[str, Indices], Incomplete | None]:
    """Return for each column with unknown values the event that has it of each last row, and what none has."""
    rows = np.flatnonzero(history.exists)
    rootless = inserts | history.severed
    sources: dict[str, Indices] = {}
    missing: dict[str, Mask] = {}
    root = rows.copy()
    for name, unknown in images.unknown.items():
        source = _known_at(unknown, history.previous)[rows]
        lacking = unknown[source]
        if (lacking & rootless[source]).any():
            raise images.nobody_knows(name)
        if lacking.any():
            missing[name] = lacking
            root[lacking] = source[lacking]
        sources[name] = source
    if not missing:
        return sources, None
    anywhere = np.flatnonzero(np.logical_or.reduce(list(missing.values())))
    origin = in_keys.take(root[anywhere])
    return sources, Incomplete(anywhere, origin, {n: m[anywhere] for n, m in missing.items()})


def _known_at(unknown: Mask, previous: Indices) -> Indices:
    """Return for each event the nearest that knows, itself or back on its row's way, else the way's first."""
    source = np.where(unknown & (previous >= 0), previous, np.arange(len(unknown)))
    while True:
        further = source[source]
        if np.array_equal(further, source):
            return source
        source = further


def _table(columns: Mapping[str, pa.ChunkedArray], exists: Mask, sources: Mapping[str, Indices]) -> pa.Table:
    """Return the rows that exist at the end; of columns in ``sources`` the values of those events."""
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
    """Return the rows, in WAL order, that are not before the position."""
    if position is None:
        return rows
    lsn, ordinal = (rows.column(n).to_numpy() for n in (COMMIT_LSN, ORDINAL))
    before = (lsn < position[0]) | ((lsn == position[0]) & (ordinal < position[1]))
    return rows.slice(int(before.sum()))


def _unchanged(rows: pa.Table) -> Iterator[tuple[int, Mask]]:
    """Yield each attnum whose value is unknown somewhere, and where."""
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
