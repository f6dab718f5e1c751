"""The staged rows of a batch: folded pieces for an upsert table, or all changes for a changelog. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from levada.destinations.bigquery.staging import ACTION, MOVED, PIECE, UNKNOWN, StagedColumns, former_name
from levada.destinations.bigquery.types import to_staged
from levada.destinations.data_files.changelog import change_rows, truncate_rows
from levada.destinations.data_files.upsert import pieces
from levada.destinations.fold import Folded, fold
from levada.destinations.keys import Indices, KeyEncoder, Keys, new_seed
from levada.pgoutput.changes import Truncate
from levada.schema import ReplicatedTableSchema
from levada.schema.changes import COMMIT_LSN, COMMIT_TS, OLD, OP, ORDINAL, UNCHANGED
from levada.schema.types import INTEGERS
from levada.segments.batch import TableEvents
from levada.values import Lsn


@dataclass(frozen=True, slots=True)
class Piece:
    """The facts about a staged piece that its MERGE needs.

    ``low`` and ``high`` bound the first key column, or are None. ``unknown`` are the attnums of columns with unknown
    values. ``moved`` is True if some of these values are those of rows with another key.
    """

    number: int
    low: int | None
    high: int | None
    unknown: tuple[int, ...] = ()
    moved: bool = False


@dataclass(slots=True)
class UpsertRows:
    """The staged rows of a batch for an upsert table, from commit LSN ``after`` on. ``pieces`` grows with them."""

    events: TableEvents
    columns: StagedColumns
    after: Lsn
    truncates: tuple[Truncate, ...]
    pieces: list[Piece] = field(default_factory=list)

    def __iter__(self) -> Iterator[pa.Table]:
        schema = self.events.schema
        seed = new_seed()
        last = self.truncates[-1] if self.truncates else None
        before = None if last is None else (int(last.commit_lsn), last.ordinal)
        for changes in pieces(self.events, self.after, before):
            folded = fold(changes, schema, seed)
            keys = KeyValues(changes, KeyEncoder(schema, seed))
            rows, piece = _staged(folded, keys, self.columns, schema, len(self.pieces))
            self.pieces.append(piece)
            yield rows


class KeyValues:
    """The key columns of all rows of a batch of changes, old rows included.

    ``changes`` have the layout of `levada.schema.changes`.
    """

    def __init__(self, changes: pa.Table, encoder: KeyEncoder) -> None:
        parts = [changes.select(list(encoder.names))]
        if OLD in changes.column_names and changes.column(OLD).null_count < changes.num_rows:
            old = changes.column(OLD).filter(pc.is_valid(changes.column(OLD)))
            parts.append(pa.table({name: pc.struct_field(old, name) for name in encoder.names}))
        self._rows = pa.concat_tables(parts)
        self._keys = encoder.encode(self._rows)

    def of(self, keys: Keys) -> pa.Table:
        """Return the key columns of keys, which all are keys of the batch, in the same order."""
        return self._rows.take(pa.array(_first_places(self._keys, keys)))


def _first_places(among: Keys, keys: Keys) -> Indices:
    """Return the index in ``among`` of each of ``keys``. It is ``len(among)`` or more for a key that is missing."""
    if not len(keys):
        return np.empty(0, np.int64)
    both = Keys.concat([among, keys])
    order = both.order(stable=True)
    starts = both.take(order).starts()
    group = np.empty(len(both), np.int64)
    group[order] = np.cumsum(starts) - 1
    # The order is stable, so the first of a group is the one of ``among``, if there is one.
    found: Indices = order[np.flatnonzero(starts)][group[len(among) :]]
    return found


def _staged(
    folded: Folded, key_values: KeyValues, columns: StagedColumns, schema: ReplicatedTableSchema, number: int
) -> tuple[pa.Table, Piece]:
    gone = key_values.of(folded.gone_keys)
    count = folded.upserts.num_rows
    more, unknown, moved = _unknown_values(folded, key_values, columns, schema)
    upserts = columns.rows(
        folded.upserts, schema, {**more, PIECE: _repeat(number, count), ACTION: pa.repeat("U", count)}
    )
    deletes = columns.rows(gone, schema, {PIECE: _repeat(number, len(gone)), ACTION: pa.repeat("D", len(gone))})
    low, high = _bounds(folded.upserts, gone, schema)
    return pa.concat_tables([deletes, upserts]), Piece(number, low, high, unknown, moved)


def _repeat(number: int, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(number, pa.int64()), count)


def _unknown_values(
    folded: Folded, key_values: KeyValues, columns: StagedColumns, schema: ReplicatedTableSchema
) -> tuple[dict[str, pa.Array], tuple[int, ...], bool]:
    """Return the staged columns that describe unknown values, the columns that have some, and if rows moved."""
    partial = folded.partial_rows
    if partial is None:
        return {}, (), False
    attnums = {c.name: c.attnum for c in schema.columns}
    places = {c.attnum: i for i, c in enumerate(columns.layout.columns)}
    flags = np.full((len(partial.rows), len(places)), b"0", "S1")
    unknown = [attnums[name] for name in partial.columns if attnums[name] in places]
    for name, mask in partial.columns.items():
        if attnums[name] in places:
            flags[mask, places[attnums[name]]] = b"1"
    texts = pa.array(flags.view(f"S{len(places)}").ravel()).cast(pa.string())
    moved = ~partial.former_keys.equal(folded.keys.take(partial.rows))
    spread = np.full(folded.upserts.num_rows, -1)
    spread[partial.rows] = np.arange(len(partial.rows))
    at = pa.array(spread, mask=spread < 0)
    former = key_values.of(partial.former_keys)
    more = {UNKNOWN: texts.take(at), MOVED: pa.array(moved).take(at)}
    for column in schema.key_columns:
        held = columns.layout.get(column.attnum)
        assert held is not None
        values = to_staged(former.column(column.name), column, held.type, schema.name)
        more[former_name(column.attnum)] = values.take(at)
    return more, tuple(sorted(unknown)), bool(moved.any())


def _bounds(upserts: pa.Table, gone: pa.Table, schema: ReplicatedTableSchema) -> tuple[int | None, int | None]:
    """Return the bounds of the first key column, if it is an integer, so that BigQuery skips blocks of the table."""
    column = schema.key_columns[0]
    if column.type.kind not in INTEGERS:
        return None, None
    spans = [pc.min_max(rows.column(column.name)) for rows in (upserts, gone) if rows.num_rows]
    if not spans:
        return None, None
    return min(s["min"].as_py() for s in spans), max(s["max"].as_py() for s in spans)


def changelog_rows(events: TableEvents, columns: StagedColumns, after: Lsn) -> Iterator[pa.Table]:
    """Yield the staged rows of a batch for a changelog, from commit LSN ``after`` on."""
    schema = events.schema
    for batch in events.scan():
        kept = batch.filter(pc.greater_equal(batch.column(COMMIT_LSN), int(after)))
        if kept.num_rows:
            yield _logged(change_rows(kept, schema), columns, schema)
    truncates = [t for t in events.truncates if t.commit_lsn >= after]
    if truncates:
        yield _logged(truncate_rows(truncates, schema), columns, schema)


def _logged(rows: pa.Table, columns: StagedColumns, schema: ReplicatedTableSchema) -> pa.Table:
    more = {name: rows.column(name) for name in (OP, COMMIT_LSN, ORDINAL, COMMIT_TS)}
    # BigQuery's arrays are never NULL.
    more[UNCHANGED] = pc.coalesce(rows.column(UNCHANGED), pa.scalar([], pa.list_(pa.string())))
    return columns.rows(rows, schema, more)
