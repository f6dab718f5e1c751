"""Conversion of columns from the Arrow types of data files to those of the source."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def as_source(column: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """Return a column of a data file in the source's Arrow type. A time may be stored as text."""
    if column.type == kind:
        return column
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([as_source(c, kind) for c in column.chunks], kind)
    if pa.types.is_time64(kind) and pa.types.is_string(column.type):
        moments = pc.binary_join_element_wise("1970-01-01", column, " ")
        return moments.cast(pa.timestamp("us")).cast(kind)
    if pa.types.is_list(kind) and pa.types.is_list(column.type):
        first = column.offsets[0] if len(column) else pa.scalar(0, pa.int32())
        elements = as_source(column.values.slice(first.as_py()), kind.value_type)
        return pa.ListArray.from_arrays(pc.subtract(column.offsets, first), elements, type=kind, mask=column.is_null())
    return column.cast(kind)
