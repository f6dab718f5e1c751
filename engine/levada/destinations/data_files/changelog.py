"""Writes one batch of changes to a changelog table, which has a row for each change.

A row has the source's columns, and additional columns that describe the change. For an insert or update the source's
columns have the new row. For a delete they have the known values of the old row. For a truncate (``T``) they are NULL.
An update that changes the key becomes a delete of the old row and an insert of the new row, with the same ordinal. So
does an update in a table without a key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from levada.destinations.data_files.arrangement import ArrangedWriter
from levada.destinations.data_files.layout import FileLayout, project
from levada.destinations.data_files.storage import Storage, WrittenFile
from levada.destinations.keys import KeyEncoder, new_seed
from levada.pgoutput.changes import Truncate
from levada.schema import ReplicatedTableSchema
from levada.schema.changes import COMMIT_LSN, COMMIT_TS, OLD, OLD_KIND, OP, ORDINAL, UNCHANGED
from levada.segments.batch import TableEvents
from levada.values import Lsn

Mask = npt.NDArray[np.bool_]


def write_changelog(
    storage: Storage, layout: FileLayout, schema: ReplicatedTableSchema, events: TableEvents, after: Lsn
) -> list[WrittenFile]:
    """Write the changes from ``after`` on, inclusive. Return the files."""
    with ArrangedWriter(storage, layout) as writer:
        for batch in events.scan():
            kept = batch.filter(pc.greater_equal(batch.column(COMMIT_LSN), int(after)))
            if kept.num_rows:
                writer.write(project(change_rows(kept, schema), layout, schema))
        _write_truncates(writer, layout, schema, events, after)
    return writer.files


def write_truncates(
    storage: Storage, layout: FileLayout, schema: ReplicatedTableSchema, events: TableEvents, after: Lsn
) -> list[WrittenFile]:
    """Write only the truncates from ``after`` on, inclusive. Return the files."""
    with ArrangedWriter(storage, layout) as writer:
        _write_truncates(writer, layout, schema, events, after)
    return writer.files


def _write_truncates(
    writer: ArrangedWriter, layout: FileLayout, schema: ReplicatedTableSchema, events: TableEvents, after: Lsn
) -> None:
    truncates = [t for t in events.truncates if t.commit_lsn >= after]
    if truncates:
        writer.write(project(truncate_rows(truncates, schema), layout, schema))


def change_rows(batch: pa.RecordBatch, schema: ReplicatedTableSchema) -> pa.Table:
    """Return the changelog rows of changes in the layout of `levada.schema.changes`. Pure."""
    columns = {name: batch.column(name) for name in schema.arrow.names}
    has_old = _mask(batch.column(OLD).is_valid())
    columns, unknown = _with_old_values(batch, schema, columns)
    news = _table(batch, schema, columns, unknown)
    moved = np.flatnonzero(_moved(batch, schema, columns, has_old))
    if not len(moved):
        return news
    old = batch.column(OLD)
    olds = _table(batch, schema, {name: pc.struct_field(old, name) for name in columns}, None).take(moved)
    operations = news.column(OP).to_numpy(zero_copy_only=False).copy()
    operations[moved] = "I"
    news = _set(news, OP, pa.array(operations, pa.string()))
    olds = _set(olds, OP, pa.repeat("D", len(moved)))
    place = np.concatenate([np.arange(news.num_rows) * 2 + 1, moved * 2])
    return pa.concat_tables([news, olds]).take(np.argsort(place))


def _table(
    batch: pa.RecordBatch, schema: ReplicatedTableSchema, columns: dict[str, pa.Array], unknown: pa.Array | None
) -> pa.Table:
    change_columns = {name: batch.column(name) for name in (OP, COMMIT_LSN, ORDINAL, COMMIT_TS)}
    change_columns[UNCHANGED] = pa.nulls(batch.num_rows, pa.list_(pa.string())) if unknown is None else unknown
    return pa.table({**{name: columns[name] for name in schema.arrow.names}, **change_columns})


def _moved(batch: pa.RecordBatch, schema: ReplicatedTableSchema, columns: dict[str, pa.Array], has_old: Mask) -> Mask:
    updates = has_old & _mask(pc.equal(batch.column(OP), "U"))
    if not schema.key or not updates.any():
        return updates
    encoder, old = KeyEncoder(schema, new_seed()), batch.column(OLD).filter(pa.array(updates))
    before = encoder.encode_columns([pc.struct_field(old, name) for name in encoder.names])
    after = encoder.encode_columns([columns[name].filter(pa.array(updates)) for name in encoder.names])
    updates[np.flatnonzero(updates)[before.equal(after)]] = False
    return updates


def _with_old_values(
    batch: pa.RecordBatch, schema: ReplicatedTableSchema, columns: dict[str, pa.Array]
) -> tuple[dict[str, pa.Array], pa.Array | None]:
    """Fill in unchanged values from complete old rows.

    Return the columns, and for each row the names of unknown ones.
    """
    unchanged = batch.column(UNCHANGED)
    if unchanged.null_count == len(unchanged):
        return columns, None
    attnums = pc.list_flatten(unchanged).to_numpy()
    rows = pc.list_parent_indices(unchanged).to_numpy()
    full = _mask(pc.fill_null(pc.equal(batch.column(OLD_KIND), "O"), False))
    result = dict(columns)
    names = np.full(len(attnums), "", dtype=object)
    for attnum in np.unique(attnums):
        column = schema.by_attnum.get(int(attnum))
        if column is None:
            continue
        mine = attnums == attnum
        known = np.zeros(batch.num_rows, np.bool_)
        known[rows[mine & full[rows]]] = True
        image = pc.struct_field(batch.column(OLD), column.name)
        result[column.name] = pc.if_else(pa.array(known), image, result[column.name])
        names[mine & ~full[rows]] = column.name
    still = names != ""
    counts = np.bincount(rows[still], minlength=batch.num_rows)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    unknown = pa.ListArray.from_arrays(
        pa.array(offsets), pa.array(names[still], pa.string()), mask=pa.array(counts == 0)
    )
    return result, unknown


def truncate_rows(truncates: Sequence[Truncate], schema: ReplicatedTableSchema) -> pa.Table:
    """Return the changelog rows of truncates. Pure."""
    n = len(truncates)
    columns: dict[str, Any] = {f.name: pa.nulls(n, f.type) for f in schema.arrow}
    columns[OP] = pa.repeat("T", n)
    columns[COMMIT_LSN] = pa.array([int(t.commit_lsn) for t in truncates], pa.int64())
    columns[ORDINAL] = pa.array([t.ordinal for t in truncates], pa.int64())
    columns[COMMIT_TS] = pa.array([t.commit_ts_us for t in truncates], pa.timestamp("us", "UTC"))
    columns[UNCHANGED] = pa.nulls(n, pa.list_(pa.string()))
    return pa.table(columns)


def _set(table: pa.Table, name: str, column: pa.Array) -> pa.Table:
    place = table.schema.get_field_index(name)
    return table.set_column(place, table.schema.field(place), column)


def _mask(column: pa.Array) -> Mask:
    mask: Mask = pc.fill_null(column, False).to_numpy(zero_copy_only=False)
    return mask
