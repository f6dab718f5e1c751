"""Row messages of one version of one table, decoded to a batch in the layout of `levada.schema.changes`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa

from levada.pgoutput.encoding import TextConversion, has_text, to_utf8, with_refused
from levada.pgoutput.masking import decode_masked
from levada.pgoutput.messages import HEADER, RelationColumn
from levada.pgoutput.text import decode_text
from levada.pgoutput.tuples import TupleColumn, read_tuples
from levada.pgoutput.wire import Bools, Bytes, Decoded, Ints, Refused, RowError, WireBuffer, bitmap, fixed
from levada.schema import Column, ReplicatedTableSchema
from levada.schema.changes import ALWAYS, UNREPRESENTABLE_TYPE, change_schema
from levada.schema.masking import is_null_mask
from levada.schema.masks import MaskKeys

_INSERT, _UPDATE, _DELETE = b"IUD"
_NEW, _KEY, _FULL = b"NKO"
TUPLE: Final = HEADER + 1 + 4
"""Offset of a row message's first tuple, which begins with a byte for its kind. Message kind and relation precede
it.
"""


@dataclass(frozen=True, slots=True)
class RowMessages:
    """Row messages of one table in WAL order, with their transactions and ordinals."""

    buffer: WireBuffer
    start: Ints
    end: Ints
    kinds: Bytes
    commit_lsn: Ints
    ordinal: Ints
    commit_ts_us: Ints
    xid: Ints


@dataclass(frozen=True, slots=True)
class _OldImage:
    """The old tuples of updates. ``rows`` are their indexes in the batch, and ``columns`` have their values."""

    rows: Ints
    full: Bools
    columns: list[TupleColumn]


def decode_rows(
    rows: RowMessages,
    relation: Sequence[RelationColumn],
    schema: ReplicatedTableSchema,
    keys: MaskKeys,
    conversion: TextConversion | None = None,
) -> pa.RecordBatch:
    """Decode the messages, and mask their values.

    ``conversion`` is that of a database with another encoding than UTF8. Raise `RowError` with an index into ``rows``,
    and ConversionError.
    """
    tags = rows.buffer.bytes[rows.start + TUPLE]
    is_old = (tags == _KEY) | (tags == _FULL)
    _check_tags(rows.kinds, tags, is_old)
    old, at = _old_image(rows, is_old, tags, len(relation))
    columns, end = read_tuples(rows.buffer, at + 1, rows.end, len(relation))
    if (end != rows.end).any():
        raise RowError(int((end != rows.end).argmax()), "excess bytes after the row")
    on_wire = {c.name: k for k, c in enumerate(relation)}
    arrays: list[pa.Array] = []
    old_arrays: list[pa.Array] = []
    refused: list[tuple[int, Refused]] = []
    unchanged: list[tuple[int, Bools]] = []
    for column in schema.columns:
        k = on_wire.get(column.name)
        if k is None:
            arrays.append(pa.nulls(len(rows.start), column.type.arrow))
            if old is not None:
                old_arrays.append(pa.nulls(len(old.rows), column.type.arrow))
            continue
        wire = columns[k]
        if old is not None:
            wire = _filled(wire, old, k, relation[k].is_key)
            old_arrays.append(_decode(old.columns[k], column, keys, conversion, old.rows).array)
        decoded = _decode(wire, column, keys, conversion)
        arrays.append(decoded.array)
        if decoded.refused is not None:
            refused.append((column.attnum, decoded.refused))
        if wire.unchanged is not None and not is_null_mask(column):
            unchanged.append((column.attnum, wire.unchanged))
    arrays += _always(rows)
    if is_old.any():
        arrays.append(_letters(tags, is_old))
        arrays.append(_old_struct(len(tags), old, old_arrays, schema))
    if unchanged:
        arrays.append(_unchanged_lists(unchanged))
    if refused:
        arrays.append(unrepresentable_map(len(tags), refused))
    layout = change_schema(schema, old=bool(is_old.any()), unchanged=bool(unchanged), unrepresentable=bool(refused))
    return pa.RecordBatch.from_arrays(arrays, schema=layout)


def _check_tags(kinds: Bytes, tags: Bytes, is_old: Bools) -> None:
    good = np.where(kinds == _INSERT, tags == _NEW, np.where(kinds == _DELETE, is_old, is_old | (tags == _NEW)))
    if not good.all():
        raise RowError(int(good.argmin()), "a row without the tuple that its message kind requires")


def _old_image(rows: RowMessages, is_old: Bools, tags: Bytes, width: int) -> tuple[_OldImage | None, Ints]:
    """Return the updates' old tuples, and the position of the tag of each row's last tuple."""
    at = rows.start + TUPLE
    with_old = np.flatnonzero(is_old & (rows.kinds == _UPDATE))
    if not len(with_old):
        return None, at
    try:
        columns, end = read_tuples(rows.buffer, at[with_old] + 1, rows.end[with_old], width)
        followed = rows.buffer.bytes[end] == _NEW
        if not followed.all():
            raise RowError(int(followed.argmin()), "an update without its new row")
    except RowError as error:
        raise RowError(int(with_old[error.row]), error.what) from None
    at[with_old] = end
    return _OldImage(with_old, tags[with_old] == _FULL, columns), at


def _filled(wire: TupleColumn, old: _OldImage, k: int, is_key: bool) -> TupleColumn:
    """Fill unchanged values from the old image: all columns under FULL, and otherwise the identity's columns."""
    if wire.unchanged is None:
        return wire
    source = old.columns[k].values
    known = wire.unchanged[old.rows] & (source.valid if source.valid is not None else True)
    if not is_key:
        known = known & old.full
    if not known.any():
        return wire
    rows = old.rows[known]
    start, length = wire.values.start.copy(), wire.values.length.copy()
    start[rows], length[rows] = source.start[known], source.length[known]
    valid, unchanged = wire.values.valid, wire.unchanged.copy()
    assert valid is not None  # A column with unchanged values has a mask.
    valid = valid.copy()
    valid[rows], unchanged[rows] = True, False
    # The filled values are elsewhere, so their fields were not read.
    values = replace(wire.values, start=start, length=length, valid=valid, fields=None)
    return TupleColumn(values, unchanged if unchanged.any() else None)


def _decode(
    wire: TupleColumn, column: Column, keys: MaskKeys, conversion: TextConversion | None, rows: Ints | None = None
) -> Decoded:
    masked, values, unconvertible = column.mask is not None, wire.values, None
    if conversion is not None and not is_null_mask(column) and (masked or has_text(column.type)):
        values, unconvertible = to_utf8(values, conversion, secret=masked)
    try:
        decoded = decode_masked(values, column, keys) if masked else decode_text(values, column.type)
        return with_refused(decoded, unconvertible)
    except RowError as error:
        row = error.row if rows is None else int(rows[error.row])
        raise RowError(row, f"column {column.name}: {error.what}") from None


def _letters(octets: Bytes, valid: Bools | None = None) -> pa.Array:
    """Return each byte as a string of one letter."""
    offsets = np.arange(len(octets) + 1, dtype=np.int32)
    validity = None if valid is None else bitmap(valid)
    return pa.Array.from_buffers(pa.string(), len(octets), [validity, pa.py_buffer(offsets), pa.py_buffer(octets)])


def _always(rows: RowMessages) -> list[pa.Array]:
    numbers = [rows.commit_lsn, rows.ordinal, rows.commit_ts_us, rows.xid]
    kinds = list(ALWAYS.types)[1:]
    return [_letters(rows.kinds), *(fixed(n, None, kind) for n, kind in zip(numbers, kinds, strict=True))]


def _old_struct(count: int, old: _OldImage | None, columns: list[pa.Array], schema: ReplicatedTableSchema) -> pa.Array:
    kind = pa.struct(list(schema.arrow))
    if old is None:
        return pa.nulls(count, kind)
    struct = pa.StructArray.from_arrays(columns, fields=list(schema.arrow))
    if len(old.rows) == count:
        return struct
    place = np.zeros(count, np.int64)
    place[old.rows] = np.arange(len(old.rows))
    present = np.zeros(count, np.bool_)
    present[old.rows] = True
    return struct.take(fixed(place, present, pa.int64()))


def _unchanged_lists(unchanged: list[tuple[int, Bools]]) -> pa.Array:
    masks = np.stack([mask for _, mask in unchanged])
    counts = masks.sum(axis=0)
    offsets = np.zeros(len(counts) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    which = np.nonzero(masks.T)[1]
    attnums = np.array([a for a, _ in unchanged], np.int16)[which]
    some = counts > 0
    return pa.Array.from_buffers(
        pa.list_(pa.field("element", pa.int16())),
        len(counts),
        [bitmap(some), pa.py_buffer(offsets)],
        children=[pa.array(attnums)],
    )


def unrepresentable_map(count: int, refused: list[tuple[int, Refused]]) -> pa.Array:
    """Return the column `levada.schema.changes.UNREPRESENTABLE` of ``count`` rows.

    Rows without such values are NULL.
    """
    rows = np.concatenate([r.rows for _, r in refused])
    attnums = np.concatenate([np.full(len(r.rows), attnum, np.int16) for attnum, r in refused])
    texts = [text for _, r in refused for text in r.texts]
    order = np.argsort(rows, kind="stable")
    counts = np.bincount(rows, minlength=count)
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    entries = pa.StructArray.from_arrays(
        [pa.array(attnums[order]), pa.array(texts, pa.string()).take(pa.array(order))],
        fields=[UNREPRESENTABLE_TYPE.key_field, UNREPRESENTABLE_TYPE.item_field],
    )
    return pa.Array.from_buffers(
        UNREPRESENTABLE_TYPE, count, [bitmap(counts > 0), pa.py_buffer(offsets)], children=[entries]
    )
