"""A batch in which rows leave or enter a table with their partitions, or by a TRUNCATE that marks them.

PostgreSQL does not stream these rows. The keys of those that leave are read from the table at the destination, and come
as ordinary deletes between the changes before the statement and those after it. So do all rows of a TRUNCATE, if the
table keeps deleted rows with a mark (`levada.apply.kept_rows`).

The rows that enter are those of the partition in a snapshot of the source, which is later than the statement. They come
as inserts at the LSN of the snapshot, and the batch ends there or later. So the table is exact at its end:

- A row of the partition in the snapshot is written as it is there, whatever the stream has of it before.
- A row that was attached and is not in the snapshot was deleted or moved in between, and the stream has that.
- Other rows have all their changes in the stream.

An UPDATE that leaves a value unchanged, of a row that was attached, finds no such row in the table. What it leaves is
replaced by the row of the snapshot or deleted in the same batch, so that the value is not needed. That is known where
the changes are folded together. If there are more than one fold takes, the rows also come at the place of the
statement, where the UPDATE finds all but those that were deleted or got another key before the snapshot.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from levada.apply.metadata import stored_form
from levada.destinations import Destination
from levada.destinations.fold import fold
from levada.destinations.keys import KeyEncoder, new_seed
from levada.destinations.regions import deciding_columns, is_in
from levada.errors import NeedsOperator
from levada.pgoutput.events import Event
from levada.schema import ReplicatedTableSchema
from levada.schema.changes import COMMIT_LSN, COMMIT_TS, OLD, OLD_KIND, OP, ORDINAL, UNCHANGED, XID
from levada.schema.kept_rows import EVERY_ROW, LIVE_ROWS, has_deleted_at
from levada.schema.partitions import Arrival, Move, Region, Removal
from levada.segments.batch import EventBatch, TableEvents
from levada.segments.files import SegmentFile
from levada.segments.projection import layout
from levada.segments.staged import StagedBatch
from levada.values import Deletes, Lsn, TableId, resync_command

_MOST_BYTES: Final = 512 << 20
"""The most bytes of keys that one removal may have in memory."""
_BATCH_ROWS: Final = 131_072
_SHARE: Final = 4
"""The rows of a piece have a limit of bytes too, which wide rows reach first."""

Place: TypeAlias = tuple[Lsn, int]
"""The place of a move in the stream: its ``at`` and ``ordinal``."""


@dataclass(frozen=True, slots=True)
class MovePlan:
    """The moves that are applied in one batch. ``rows`` has the rows of arrivals with leaves.

    The batch has all changes below ``until``.
    """

    moves: tuple[Move, ...]
    rows: Mapping[Arrival, LeafRows]
    until: Lsn


@dataclass(frozen=True, slots=True)
class _Moved:
    """Changes with one operation at one place. ``rows`` is their number."""

    at: Lsn
    ordinal: int
    operation: str
    batches: Callable[[], Iterable[pa.RecordBatch]]
    rows: int
    commit_ts: int | None = None
    """Microseconds since 1970-01-01 UTC, None if it is unknown."""

    def split(self, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Return the changes before the move and those after it."""
        lsn, ordinal = rows.column(COMMIT_LSN), rows.column(ORDINAL)
        same = pc.and_(pc.equal(lsn, int(self.at)), pc.less(ordinal, self.ordinal))
        before = pc.or_(pc.less(lsn, int(self.at)), same)
        return rows.filter(before), rows.filter(pc.invert(before))


class MoveEvents(TableEvents):
    """The changes of a table, and those of moves at their places. Moves are added in their order."""

    def __init__(self, inner: TableEvents) -> None:
        self._inner = inner
        self._moves: list[_Moved] = []
        self.target, self.versions, self.files = inner.target, inner.versions, inner.files
        self.truncates, self.after, self.until, self.limits = inner.truncates, inner.after, inner.until, inner.limits
        if inner.target.deletes is not Deletes.APPLY:
            self.truncates = ()

    @property
    def is_folded_together(self) -> bool:
        """Return True if one fold takes all changes of the stream."""
        return self._inner.rows <= self.limits.piece_rows // _SHARE

    def remove(self, place: Place, keys: pa.Table, commit_ts: int | None = None) -> None:
        """Add the deletes of rows by their keys."""
        self._moves.append(_Moved(*place, "D", lambda: keys.to_batches(_BATCH_ROWS), keys.num_rows, commit_ts))

    def insert(self, place: Place, read: LeafRows) -> None:
        """Add the inserts of the rows of partitions."""
        self._moves.append(_Moved(*place, "I", read.scan, sum(read.counts.values())))

    @property
    def rows(self) -> int:
        """The number of changes, an upper bound."""
        return self._inner.rows + sum(moved.rows for moved in self._moves)

    def scan(
        self, columns: Sequence[str] | None = None, *, files: Sequence[SegmentFile] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the changes in WAL order, as `TableEvents.scan` does, with those of the moves between them."""
        yield from self._merged(columns, files, None)

    def _merged(
        self, columns: Sequence[str] | None, files: Sequence[SegmentFile] | None, end: _Moved | None
    ) -> Iterator[pa.RecordBatch]:
        # The columns that show the place of a change may not be among those that the caller wants.
        wanted = None if columns is None else [*columns, *({COMMIT_LSN, ORDINAL} - set(columns))]
        moves = list(self._moves)
        for rows in self._inner.scan(wanted, files=files):
            left = rows if end is None else end.split(rows)[0]
            while moves and left.num_rows:
                before, left = moves[0].split(left)
                if before.num_rows:
                    yield _selected(before, columns)
                if left.num_rows:
                    yield from self._changes(moves.pop(0), columns)
            if left.num_rows:
                yield _selected(left, columns)
        self.nulled = self._inner.nulled
        for moved in moves:
            yield from self._changes(moved, columns)

    def before(self, place: Place, columns: Sequence[str]) -> pa.Table | None:
        """Return the changes before a place at or after that of the last move, None without any.

        Raise NeedsOperator ``partition_changed`` if they do not fit into memory.
        """
        end = _Moved(*place, "", tuple, 0)
        found: list[pa.RecordBatch] = []
        size = 0
        for rows in self._merged(columns, None, end):
            found.append(rows)
            size += rows.nbytes
            if size > _MOST_BYTES:
                raise _unmovable(self.schema, f"the changes before have more than {_MOST_BYTES >> 20} MiB of keys")
        return pa.Table.from_batches(found) if found else None

    def _changes(self, moved: _Moved, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        form = layout(self.schema)
        chosen = form if columns is None else pa.schema([form.field(name) for name in columns])
        for rows in moved.batches():
            known = {
                **{name: rows.column(name) for name in rows.schema.names},
                OP: pa.repeat(pa.scalar(moved.operation), rows.num_rows),
                COMMIT_LSN: pa.repeat(pa.scalar(int(moved.at), pa.int64()), rows.num_rows),
                ORDINAL: pa.repeat(pa.scalar(moved.ordinal, pa.int64()), rows.num_rows),
                COMMIT_TS: pa.repeat(pa.scalar(moved.commit_ts, form.field(COMMIT_TS).type), rows.num_rows),
                XID: pa.nulls(rows.num_rows, pa.int64()),
            }
            arrays = [known[f.name] if f.name in known else pa.nulls(rows.num_rows, f.type) for f in chosen]
            yield pa.RecordBatch.from_arrays(arrays, schema=chosen)


class MoveBatch(EventBatch):
    """The changes of a table with all moves among them, in order. It cannot be read as events."""

    def __init__(self, batch: StagedBatch, plan: MovePlan, destination: Destination) -> None:
        (table,) = self.tables = batch.tables
        self.until = batch.until
        self._events = events = MoveEvents(batch.changes(table))
        for read in plan.rows.values():
            _require_same_columns(read.schema, events.schema)
        deletes = events.target.deletes
        emptied = batch.changes(table).truncates if deletes is Deletes.MARK else ()
        truncates = {Removal(t.commit_lsn, t.ordinal, EVERY_ROW): t.commit_ts_us for t in emptied}
        places = [*self._places(plan), *(((t.at, t.ordinal), t) for t in truncates)]
        for place, move in sorted(places, key=lambda placed: placed[0]):
            if isinstance(move, Removal):
                if deletes is not Deletes.IGNORE:
                    # What an earlier move changes comes before the later one.
                    events.remove(place, _keys_to_delete(events, move, destination), truncates.get(move))
            else:
                events.insert(place, plan.rows[move])

    def _places(self, plan: MovePlan) -> Iterator[tuple[Place, Move]]:
        for move in plan.moves:
            if isinstance(move, Removal):
                yield (move.at, move.ordinal), move
            elif move in plan.rows:
                if not self._events.is_folded_together:
                    yield (move.at, move.ordinal), move
                yield (plan.rows[move].lsn, 0), move

    def changes(self, table: TableId) -> TableEvents:
        """Return the changes of the table."""
        return self._events

    def __iter__(self) -> Iterator[Event]:
        raise NotImplementedError("a destination with the capability finds_rows reads changes as Arrow data")


def stored_batch(staged: StagedBatch, destination: Destination) -> EventBatch:
    """Return a batch without moves as the destination gets it, with the rows that a TRUNCATE marks.

    Raise NeedsOperator ``partition_changed`` if their keys do not fit into memory.
    """
    for table in staged.tables:
        changes = staged.changes(table)
        if changes.truncates and changes.target.deletes is Deletes.MARK:
            return stored_form(MoveBatch(staged, MovePlan((), {}, staged.until), destination))
    return stored_form(staged)


def _keys_to_delete(events: MoveEvents, removal: Removal, destination: Destination) -> pa.Table:
    """Return the keys of the rows that are in the region before the removal, each once."""
    schema = events.schema
    deciding = deciding_columns(removal.region, schema)
    names = [c.name for c in schema.key_columns]
    target, region = events.target.keeping(events.target.deletes), removal.region
    if has_deleted_at(target.schema):
        # A row that is marked keeps its mark.
        region = Region(tuple((*conditions, *LIVE_ROWS.parts[0]) for conditions in region.parts))
    held = _collected(destination.keys_in(target, region), schema, names)
    narrow = replace(schema, columns=tuple(c for c in schema.columns if c in deciding or c.attnum in schema.key))
    shown = {c.name for c in narrow.columns} | {OP, COMMIT_LSN, ORDINAL, OLD_KIND, OLD, UNCHANGED}
    changes = events.before((removal.at, removal.ordinal), [name for name in layout(schema).names if name in shown])
    if changes is None:
        return held
    seed = new_seed()
    folded = fold(changes, narrow, seed)
    if folded.partial_rows is not None:
        raise _unmovable(schema, "a change in the same transaction leaves a column of the partition key unchanged")
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
            raise _unmovable(schema, f"their keys have more than {_MOST_BYTES >> 20} MiB")
    return pa.Table.from_batches(found, form)


def _require_same_columns(read: ReplicatedTableSchema, now: ReplicatedTableSchema) -> None:
    """Raise NeedsOperator ``partition_changed`` if rows have other columns than the table at the end of the batch."""
    if [(c.attnum, c.name, c.type.arrow) for c in read.columns] != [
        (c.attnum, c.name, c.type.arrow) for c in now.columns
    ]:
        raise _unmovable(now, "the stream does not show the columns that they have")


def _unmovable(schema: ReplicatedTableSchema, why: str) -> NeedsOperator:
    return NeedsOperator(
        "partition_changed",
        f"table {schema.name}: the rows of a partition cannot be moved at the destination: {why}",
        hint=resync_command(schema.name),
    )


def _selected(rows: pa.RecordBatch, columns: Sequence[str] | None) -> pa.RecordBatch:
    return rows if columns is None else rows.select(list(columns))


@dataclass(frozen=True, slots=True)
class LeafRows:
    """The rows of leaves in a snapshot at ``lsn``, whose columns are those of ``schema``.

    ``counts`` has the number of rows of each leaf that the table has in the snapshot. They are in files of ``folder``.
    ``nulled`` counts the values that became NULL under the policy ``Null``.
    """

    lsn: Lsn
    schema: ReplicatedTableSchema
    folder: Path
    counts: Mapping[TableId, int]
    nulled: int

    def scan(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows."""
        for leaf in self.counts:
            with pa.OSFile(str(leaf_file(self.folder, leaf))) as source, pa.ipc.open_file(source) as reader:
                for number in range(reader.num_record_batches):
                    yield reader.get_batch(number)

    def remove(self) -> None:
        """Remove the files."""
        shutil.rmtree(self.folder, ignore_errors=True)


def leaf_file(folder: Path, leaf: TableId) -> Path:
    """Return the path of the rows of a leaf."""
    return folder / f"{int(leaf)}.arrow"
