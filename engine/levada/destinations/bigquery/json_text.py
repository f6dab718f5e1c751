"""Arrays, ranges and maps as JSON text. Pure.

BigQuery's own arrays hold no NULL, and do not distinguish NULL from an empty array. JSON does both.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from levada.destinations import json_text
from levada.destinations.arrow_text import decimal_text
from levada.destinations.temporal_text import temporal_text
from levada.pgoutput.temporal import date_text, timestamp_text
from levada.schema import ColumnType, Kind
from levada.schema.types import INTEGERS


def json_values(values: pa.Array | pa.ChunkedArray, kind: ColumnType) -> pa.Array:
    """Return each list as the text of a JSON array, each range and map as that of an object, and NULL for NULL.

    Lists in lists are arrays in arrays. Integers and booleans are JSON's own, and so are finite floats. Elements of
    json are nested as they are. All other elements are strings: decimals and times in PostgreSQL's form, and bytea in
    hexadecimal digits.
    """
    whole = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    text = _elements(whole, kind)
    return pc.cast(pc.if_else(whole.is_valid(), text, pa.scalar(None, text.type)), pa.string())


def _elements(values: pa.Array, kind: ColumnType) -> pa.Array:
    if kind.parts:
        parts = [_elements(f, part) for f, (_, part) in zip(values.flatten(), kind.parts, strict=True)]
        return json_text.objects([name for name, _ in kind.parts], parts, values.is_valid())
    if kind.element is not None:
        return json_text.lists(values, _elements(values.flatten(), kind.element))
    if kind.kind is Kind.MAP:
        return json_text.maps(values)
    if kind.kind is Kind.JSON:
        return pc.fill_null(pc.cast(values, pa.large_string()), "null")
    if kind.kind in INTEGERS:
        return json_text.integers(values)
    if kind.kind is Kind.BOOL:
        return json_text.booleans(values)
    if kind.kind in (Kind.FLOAT4, Kind.FLOAT8):
        return json_text.floats(values)
    if kind.kind is Kind.TEXT:
        return json_text.quoted(values)
    return json_text.surrounded(_plain_text(values, kind))


def _plain_text(values: pa.Array, kind: ColumnType) -> pa.Array:
    if kind.kind is Kind.BYTEA:
        return _hexadecimal(values)
    if kind.kind is Kind.DECIMAL:
        return decimal_text(values)
    if kind.kind is Kind.DATE:
        return temporal_text(values, date_text)
    if kind.kind in (Kind.TIMESTAMP, Kind.TIMESTAMPTZ):
        zoned = kind.kind is Kind.TIMESTAMPTZ
        return temporal_text(values, lambda n: timestamp_text(n, zone=zoned), zone="+00" if zoned else "")
    return pc.cast(values, pa.string())


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
