"""Evaluation of the rows of partitions (`levada.schema.partitions`) on Arrow data. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from levada.errors import NeedsOperator
from levada.pgoutput.text import parse_text
from levada.schema import Column, ReplicatedTableSchema
from levada.schema.partitions import Box, Condition, End, Region, Value
from levada.values import resync_command

Columns = Mapping[int, pa.Array | pa.ChunkedArray]
"""Columns in the source's Arrow types, by attnum."""

Bounds = Mapping[int, pa.Array]
"""The lowest and the highest value of a column without NULLs, by attnum, in the source's Arrow types."""


def deciding_columns(region: Region, schema: ReplicatedTableSchema) -> list[Column]:
    """Return the columns that decide whether a row is in the region. Raise NeedsOperator ``partition_changed``."""
    if missing := sorted(region.columns - schema.by_attnum.keys()):
        raise column_missing(schema, missing[0])
    return [schema.by_attnum[n] for n in sorted(region.columns)]


def column_missing(schema: ReplicatedTableSchema, attnum: int) -> NeedsOperator:
    """Return the error for a column of a partition key that is not in the table."""
    return NeedsOperator(
        "partition_changed",
        f"table {schema.name}: the rows of a partition cannot be removed, because column number {attnum} of the"
        " partition key is not in the table at the destination",
        hint=resync_command(schema.name),
    )


def is_in(region: Region, schema: ReplicatedTableSchema, columns: Columns, rows: int) -> pa.Array | pa.ChunkedArray:
    """Return a mask of the rows that are in the region."""
    found = _constant(rows, value=False)
    for conditions in region.parts:
        part = _constant(rows, value=True)
        for condition in conditions:
            part = pc.and_(part, _satisfies(condition, schema, columns, rows))
        found = pc.or_(found, part)
    return found


def may_be_in(region: Region, schema: ReplicatedTableSchema, bounds: Bounds) -> bool:
    """Return False if rows whose values are within the bounds cannot be in the region."""
    return any(
        all(c.negated or c.columns[0] not in bounds or _may_satisfy(c, schema, bounds) for c in conditions)
        for conditions in region.parts
    )


def _may_satisfy(condition: Condition, schema: ReplicatedTableSchema, bounds: Bounds) -> bool:
    kind, (low, high) = schema.by_attnum[condition.columns[0]].type, bounds[condition.columns[0]]
    for box in condition.boxes:
        values = [parse_text(kind, v) for v in box.values if v is not None]
        if any(pc.and_(pc.less_equal(low, v), pc.less_equal(v, high)).as_py() for v in values):
            return True
        if box.values:
            continue
        first, last = box.low[0], box.high[0]
        above = not isinstance(first, str) or isinstance(first, End) or pc.less_equal(parse_text(kind, first), high)
        below = not isinstance(last, str) or isinstance(last, End) or pc.less_equal(low, parse_text(kind, last))
        if pc.and_(above, below).as_py():
            return True
    return False


def _satisfies(
    condition: Condition, schema: ReplicatedTableSchema, columns: Columns, rows: int
) -> pa.Array | pa.ChunkedArray:
    found = _constant(rows, value=False)
    kinds = [schema.by_attnum[n] for n in condition.columns]
    arrays = [columns[n] for n in condition.columns]
    for box in condition.boxes:
        found = pc.or_(found, _in_box(box, kinds, arrays, rows))
    return pc.invert(found) if condition.negated else found


def _in_box(
    box: Box, kinds: Sequence[Column], arrays: Sequence[pa.Array | pa.ChunkedArray], rows: int
) -> pa.Array | pa.ChunkedArray:
    if box.values:
        texts = [v for v in box.values if v is not None]
        values = pa.array([parse_text(kinds[0].type, text).as_py() for text in texts], kinds[0].type.arrow)
        found = pc.and_(pc.is_in(arrays[0], value_set=values), pc.is_valid(arrays[0]))
        return pc.or_(found, pc.is_null(arrays[0])) if None in box.values else found
    above = _compared(box.low, kinds, arrays, rows, beyond=pc.greater, at_end=True)
    below = _compared(box.high, kinds, arrays, rows, beyond=pc.less, at_end=False)
    return pc.fill_null(pc.and_(above, below), False)


def _compared(
    bound: Sequence[Value],
    kinds: Sequence[Column],
    arrays: Sequence[pa.Array | pa.ChunkedArray],
    rows: int,
    *,
    beyond: pc.Function,
    at_end: bool,
) -> pa.Array | pa.ChunkedArray:
    """Return a mask of the rows beyond a bound, column by column. ``at_end`` is the result for rows that equal it."""
    if not bound:
        return _constant(rows, value=at_end)
    first = bound[0]
    if isinstance(first, End):
        # Each value is above MINVALUE and below MAXVALUE, so that the other columns do not count.
        return pc.and_(pc.is_valid(arrays[0]), _constant(rows, value=(first is End.LOWEST) == (beyond is pc.greater)))
    assert first is not None
    value = parse_text(kinds[0].type, first)
    rest = _compared(bound[1:], kinds[1:], arrays[1:], rows, beyond=beyond, at_end=at_end)
    return pc.or_(beyond(arrays[0], value), pc.and_(pc.equal(arrays[0], value), rest))


def _constant(rows: int, *, value: bool) -> pa.Array:
    return pa.repeat(pa.scalar(value), rows)
