"""Arrays as JSON text. Pure.

BigQuery's own arrays hold no NULL, and do not distinguish NULL from an empty array. JSON does both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from levada.schema import ColumnType, Kind

_NUMBERS: Final = frozenset({Kind.INT2, Kind.INT4, Kind.INT8, Kind.OID, Kind.BOOL})
_ESCAPES: Final[Mapping[str, str]] = {
    "\\": "\\\\",  # first, because the others contain it
    '"': '\\"',
    **{chr(c): f"\\u{c:04x}" for c in range(0x20)},
}
_FLOATS: Final[Mapping[str, str]] = {
    "nan": '"NaN"',
    "inf": '"Infinity"',
    "-inf": '"-Infinity"',
    "-0": "-0.0",  # -0 would be an integer
}
_SPECIAL: Final = r'[\x00-\x1f"\\]'


def json_arrays(values: pa.Array | pa.ChunkedArray, kind: ColumnType) -> pa.Array:
    """Return each list as the text of a JSON array, and NULL for NULL.

    Integers and booleans are JSON's own, and so are finite floats. Elements of json are nested as they are. All other
    elements are strings: decimals and times in PostgreSQL's form, and bytea in hexadecimal digits.
    """
    lists = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    assert kind.element is not None
    elements = pc.fill_null(_texts(lists.flatten(), kind.element), "null")
    lengths = pc.fill_null(pc.list_value_length(lists), 0)
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths).cast(pa.int32())])
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, elements), ",")
    whole = pc.binary_join_element_wise("[", joined, "]", "")
    return pc.if_else(pc.is_valid(lists), whole, pa.scalar(None, pa.string()))


def _texts(elements: pa.Array, kind: ColumnType) -> pa.Array:
    if kind.kind is Kind.JSON:
        return elements
    if kind.kind in _NUMBERS:
        return pc.cast(elements, pa.string())
    if kind.kind in (Kind.FLOAT4, Kind.FLOAT8):
        texts = pc.cast(elements.cast(pa.float64()), pa.string())
        for arrow, json in _FLOATS.items():
            texts = pc.if_else(pc.equal(texts, arrow), json, texts)
        return texts
    if kind.kind is Kind.BYTEA:
        return _quoted(_hexadecimal(elements))
    if kind.kind is Kind.TIMESTAMPTZ:
        zoned = pc.binary_join_element_wise(pc.cast(elements.cast(pa.timestamp("us")), pa.string()), "+00", "")
        return _quoted(zoned)
    if kind.kind is Kind.TEXT or kind.kind is Kind.UUID:
        return _quoted(_escaped(elements))
    return _quoted(pc.cast(elements, pa.string()))


def _quoted(texts: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', texts, '"', "")


def _escaped(texts: pa.Array) -> pa.Array:
    if not pc.any(pc.match_substring_regex(texts, _SPECIAL)).as_py():
        return texts
    for character, escape in _ESCAPES.items():
        texts = pc.replace_substring(texts, character, escape)
    return texts


def _hexadecimal(values: pa.Array) -> pa.Array:
    """Return the bytes as hexadecimal digits."""
    filled = pc.fill_null(values, b"")
    lengths = pc.binary_length(filled).to_numpy()
    data = np.frombuffer(filled.buffers()[2] or b"", np.uint8)
    start = int(np.frombuffer(filled.buffers()[1], "<i4")[filled.offset]) if len(filled) else 0
    digits = data[start : start + int(lengths.sum())].tobytes().hex().encode()
    offsets = np.concatenate([[0], np.cumsum(lengths * 2)]).astype(np.int32)
    texts = pa.StringArray.from_buffers(len(filled), pa.py_buffer(offsets), pa.py_buffer(digits))
    return pc.if_else(pc.is_valid(values), texts, pa.scalar(None, pa.string()))
