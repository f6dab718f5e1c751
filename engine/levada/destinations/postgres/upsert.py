"""Applies a batch of changes to a table that holds the last state of each row.

The batch is folded in pieces. For each piece, keys to delete and rows to write go into temporary tables by COPY, and
two statements apply them. A row that stays is updated, and not deleted and inserted, so that foreign keys to it hold.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from levada.destinations.data_files.upsert import pieces
from levada.destinations.fold import Folded, PartialRows, fold, row_missing
from levada.destinations.keys import Indices, KeyEncoder, Keys, Mask, new_seed
from levada.destinations.postgres.columns import HeldColumn, Layout, column_list
from levada.destinations.postgres.connections import lock_exclusively
from levada.destinations.postgres.copy_text import copy_rows
from levada.destinations.postgres.naming import identifier
from levada.destinations.postgres.shadow_copy import upsert_statement
from levada.destinations.postgres.state import find_relation
from levada.destinations.postgres.types import equal_is_identical
from levada.postgres.silence import WatchedConnection
from levada.schema import Column, ReplicatedTableSchema
from levada.schema.changes import OLD
from levada.segments.batch import TableEvents
from levada.values import Lsn, QualifiedTable

_LENGTH: Final = re.compile(r" ?\(\d+(, ?-?\d+)?\)")


def apply_upserts(
    connection: WatchedConnection, place: QualifiedTable, layout: Layout, events: TableEvents, after: Lsn
) -> None:
    """Apply the changes from ``after`` on, inclusive."""
    truncates = [t for t in events.truncates if t.commit_lsn >= after]
    before = None
    if truncates:
        before = (int(truncates[-1].commit_lsn), truncates[-1].ordinal)
        empty_table(connection, place)
    batch = _Batch(connection, identifier(place), layout, events.schema, new_seed(), keeps=events.target.keeps_rows)
    for piece in pieces(events, after, before):
        batch.apply(piece)


def replace_rows(
    connection: WatchedConnection,
    place: QualifiedTable,
    layout: Layout,
    schema: ReplicatedTableSchema,
    rows: Iterable[pa.RecordBatch],
) -> None:
    """Write whole rows, in place of those with the same keys."""
    batch = _Batch(connection, identifier(place), layout, schema, new_seed())
    for piece in rows:
        batch.write(pa.Table.from_batches([piece]))


def delete_keys(
    connection: WatchedConnection,
    place: QualifiedTable,
    layout: Layout,
    schema: ReplicatedTableSchema,
    keys: pa.Table,
    *,
    counted: bool = False,
    spared: Sequence[int] = (),
) -> int:
    """Delete the rows with these keys, and return their number. With ``counted`` only return it.

    ``keys`` has the key columns by their names. Rows whose xmin is in ``spared`` stay.
    """
    batch = _Batch(connection, identifier(place), layout, schema, new_seed())
    return batch.delete(keys, counted=counted, spared=spared)


def empty_table(connection: WatchedConnection, place: QualifiedTable) -> None:
    """Remove all rows. TRUNCATE is not allowed for a table with foreign keys to it."""
    referenced = "SELECT FROM pg_constraint WHERE contype = 'f' AND confrelid = %s"
    if connection.execute(referenced, [find_relation(connection, place)]).rowcount:
        connection.execute(sql.SQL("DELETE FROM {}").format(identifier(place)))
    else:
        lock_exclusively(connection, place)
        connection.execute(sql.SQL("TRUNCATE {}").format(identifier(place)))


@dataclass(slots=True)
class _Batch:
    connection: WatchedConnection
    table: sql.Identifier
    layout: Layout
    schema: ReplicatedTableSchema
    seed: bytes
    used: list[sql.Identifier] = field(default_factory=list)
    """The temporary tables that have rows."""
    keeps: bool = False
    """True if the table may have rows that the source does not have."""

    def apply(self, piece: pa.Table) -> None:
        folded = fold(piece, self.schema, self.seed)
        known = _KnownKeys.of(piece, self.schema, self.seed)
        gone = known.without(folded.keys)
        rows = self._write_rows(folded, known)
        if gone.num_rows:
            keys = self._scratch("d", [(f"k{i}", t) for i, t in enumerate(self._key_types)])
            self._fill(keys, gone)
            self.connection.execute(
                sql.SQL("DELETE FROM {} t USING {} d WHERE {}").format(self.table, keys, self._same_key("d"))
            )
        if rows is not None:
            self._upsert(rows)
        self._empty_scratch()

    def write(self, whole: pa.Table) -> None:
        """Write rows with all their values, in place of those with the same keys."""
        rows = self._scratch("u", [(f"c{i}", c.type) for i, (c, _) in enumerate(self._held)])
        self._fill(rows, whole.select([c.name for _, c in self._held]))
        self._upsert(rows)
        self._empty_scratch()

    def delete(self, keys: pa.Table, *, counted: bool, spared: Sequence[int]) -> int:
        """Delete the rows with these keys, or only count them. Those that the transactions ``spared`` wrote stay."""
        given = self._scratch("d", [(f"k{i}", without_length(t)) for i, t in enumerate(self._key_types)])
        self._fill(given, keys.select([c.name for c in self.schema.key_columns]))
        if counted:
            statement = sql.SQL("SELECT FROM {} t WHERE EXISTS (SELECT FROM {} d WHERE {})")
        else:
            statement = sql.SQL("DELETE FROM {} t USING {} d WHERE {}")
        where: sql.Composable = self._same_key("d")
        if spared:
            # Without parameters, because a column's name may have a percent sign.
            condition = sql.SQL("{} AND t.xmin <> ALL ({}::text[]::xid[])")
            where = condition.format(where, sql.Literal([str(xid) for xid in spared]))
        rows = self.connection.execute(statement.format(self.table, given, where)).rowcount
        self._empty_scratch()
        return rows

    def _upsert(self, rows: sql.Identifier) -> None:
        names = [c.name for c, _ in self._held]
        columns = [f"c{i}" for i in range(len(names))]
        # Of columns that the source dropped, if onSchemaChange is Ignore. They are NULL at each destination.
        gone_columns = [c.name for c in self.layout.columns if c.attnum not in self.schema.by_attnum]
        source: sql.Composable = rows
        if self._may_repeat:
            # A kept row and a later one, such as those of 1.0 and 1.00. The table has a place for one of them.
            keys = [columns[i] for i, (c, _) in enumerate(self._held) if c.attnum in self.schema.key]
            key = sql.SQL(", ").join(map(sql.Identifier, keys))
            last = sql.SQL("(SELECT DISTINCT ON ({0}) * FROM {1} ORDER BY {0}, place DESC) AS rows")
            source = last.format(key, rows)
        self.connection.execute(
            upsert_statement(self.table, names, self._key_columns, source, columns, cleared=gone_columns)
        )

    def _write_rows(self, folded: Folded, known: _KnownKeys) -> sql.Identifier | None:
        """Write the rows that exist at the end into a temporary table, with all their values."""
        if not folded.upserts.num_rows:
            return None
        upserts = folded.upserts.select([c.name for _, c in self._held])
        columns = [(f"c{i}", c.type) for i, (c, _) in enumerate(self._held)]
        if self._may_repeat:
            columns.append(("place", "integer"))
            upserts = upserts.append_column("place", pa.array(np.arange(upserts.num_rows, dtype=np.int32)))
        rows = self._scratch("u", columns)
        partial = folded.partial_rows
        if partial is None:
            self._fill(rows, upserts)
            return rows
        complete = np.ones(upserts.num_rows, np.bool_)
        complete[partial.rows] = False
        self._fill(rows, upserts.filter(pa.array(complete)))
        for some in (~partial.optional, partial.optional):
            if some.any():
                self._complete(rows, columns, upserts, partial.take(some), known)
        return rows

    def _complete(
        self,
        rows: sql.Identifier,
        columns: list[tuple[str, str]],
        upserts: pa.Table,
        partial: PartialRows,
        known: _KnownKeys,
    ) -> None:
        """Add the rows with unknown values. The server takes these from its rows under the former keys.

        ``partial`` are some of the partial rows of ``upserts``, all of them optional or none.
        """
        upserts = upserts.take(partial.rows)
        keys = known.values.take(known.find(partial.former_keys))
        key_columns = [(f"k{i}", t) for i, t in enumerate(self._key_types)]
        scratch = self._scratch("p", [*columns, *key_columns, ("unknown", "integer[]")])
        numbers = {c.name: i for i, (_, c) in enumerate(self._held)}
        unknown = {numbers[n]: mask for n, mask in partial.columns.items() if n in numbers}
        data = pa.table(
            [*upserts.columns, *keys.columns, _numbers(unknown, upserts.num_rows)],
            names=[
                *(n for n, _ in columns),
                *(n for n, _ in key_columns),
                "unknown",
            ],
        )
        self._fill(scratch, data)
        values: list[sql.Composable] = [
            sql.SQL("CASE WHEN {} = ANY (p.unknown) THEN t.{} ELSE p.{} END").format(
                i, sql.Identifier(held.name), sql.Identifier(f"c{i}")
            )
            if i in unknown
            else sql.SQL("p.{}").format(sql.Identifier(f"c{i}"))
            for i, (held, _) in enumerate(self._held)
        ]
        if self._may_repeat:
            values.append(sql.SQL("p.place"))
        done = self.connection.execute(
            sql.SQL("INSERT INTO {} SELECT {} FROM {} p JOIN {} t ON {}").format(
                rows, sql.SQL(", ").join(values), scratch, self.table, self._same_key("p")
            )
        )
        if done.rowcount != upserts.num_rows and not partial.optional.any():
            raise row_missing(self.schema.name, partial.column_of(~partial.optional))

    @property
    def _may_repeat(self) -> bool:
        """True if two rows of a batch may have equal keys, which have different texts."""
        return self.keeps and not all(map(equal_is_identical, self._key_types))

    @property
    def _held(self) -> list[tuple[HeldColumn, Column]]:
        """The columns that the table and the source both have."""
        return self.layout.held(self.schema)

    @property
    def _key_columns(self) -> list[HeldColumn]:
        by_attnum = {c.attnum: c for c in self.layout.columns}
        return [by_attnum[a] for a in self.schema.key]

    @property
    def _key_types(self) -> list[str]:
        return [c.type for c in self._key_columns]

    def _same_key(self, alias: str) -> sql.Composed:
        return sql.SQL(" AND ").join(
            sql.SQL("t.{} = {}.{}").format(sql.Identifier(key.name), sql.Identifier(alias), sql.Identifier(f"k{i}"))
            for i, key in enumerate(self._key_columns)
        )

    def _scratch(self, kind: str, columns: Sequence[tuple[str, str]]) -> sql.Identifier:
        """Return an empty temporary table with these columns. It lives as long as the connection.

        Without ON COMMIT DELETE ROWS, because each commit would then lock and empty those of all other tables too.
        """
        digest = hashlib.sha256(json.dumps(columns).encode()).hexdigest()[:24]
        name = f"levada_{kind}_{digest}"
        scratch = sql.Identifier("pg_temp", name)
        create = sql.SQL("CREATE TEMPORARY TABLE IF NOT EXISTS {} ({})")
        self.connection.execute(create.format(scratch, column_list(columns)))
        if scratch in self.used:
            self.connection.execute(sql.SQL("TRUNCATE {}").format(scratch))
        else:
            self.used.append(scratch)
        return scratch

    def _empty_scratch(self) -> None:
        """Empty the temporary tables for the next piece, and for other tables with the same types."""
        if self.used:
            self.connection.execute(sql.SQL("TRUNCATE {}").format(sql.SQL(", ").join(self.used)))
            self.used.clear()

    def _fill(self, scratch: sql.Identifier, rows: pa.Table) -> None:
        statement = sql.SQL("COPY {} FROM STDIN").format(scratch)
        with self.connection.cursor() as cursor, cursor.copy(statement) as copy:
            for data in copy_rows(rows):
                copy.write(data)


@dataclass(frozen=True, slots=True, eq=False)
class _KnownKeys:
    """The keys that a piece names, with their values. One key may occur more than once."""

    keys: Keys
    values: pa.Table

    @classmethod
    def of(cls, piece: pa.Table, schema: ReplicatedTableSchema, seed: bytes) -> _KnownKeys:
        names = [c.name for c in schema.key_columns]
        columns = [piece.column(n) for n in names]
        if OLD in piece.column_names and piece.column(OLD).null_count < piece.num_rows:
            old = piece.column(OLD)
            images = [pc.struct_field(old, n) for n in names]
            # The value of an unchanged key may be in the old row only. No key has NULL.
            columns = [pc.coalesce(c, i) for c, i in zip(columns, images, strict=True)]
            has_old = pc.is_valid(old)
            columns = [
                pa.chunked_array([*c.chunks, *i.filter(has_old).chunks], c.type)
                for c, i in zip(columns, images, strict=True)
            ]
        encoder = KeyEncoder(schema, seed)
        table = pa.table(columns, names=names)
        return cls(encoder.encode_columns([table.column(n) for n in encoder.names]), table)

    def without(self, others: Keys) -> pa.Table:
        """Return the values of the distinct keys that are not among ``others``."""
        both = Keys.concat([others, self.keys])
        order = both.order(stable=True)
        first = order[both.take(order).starts()]
        return self.values.take(first[first >= len(others)] - len(others))

    def find(self, keys: Keys) -> Indices:
        """Return the index of each of ``keys``, all of which the piece names."""
        both = Keys.concat([self.keys, keys])
        order = both.order(stable=True)
        starts = both.take(order).starts()
        group = np.empty(len(both), np.int64)
        group[order] = np.cumsum(starts) - 1
        found: Indices = order[starts][group[len(self.keys) :]]
        return found


def without_length(kind: str) -> str:
    """Return a type without its length or precision. No row has a longer key, and that is no error. Pure."""
    found = _LENGTH.sub("", kind)
    # By itself the word is a type of one character.
    return "bpchar" if found == "character" else found


def _numbers(columns: Mapping[int, Mask], rows: int) -> pa.Array:
    """Return a list for each row: the numbers of the columns whose mask has it."""
    numbers = sorted(columns)
    masks = np.column_stack([columns[n] for n in numbers]) if numbers else np.zeros((rows, 0), np.bool_)
    row, column = np.nonzero(masks)
    offsets = np.concatenate(([0], np.cumsum(np.bincount(row, minlength=rows))))
    values = np.array(numbers, np.int32)[column]
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values, pa.int32()))
