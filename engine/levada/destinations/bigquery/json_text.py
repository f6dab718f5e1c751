"""Arrays as JSON text. Pure.

BigQuery's own arrays hold no NULL, and do not distinguish NULL from an empty array. JSON does both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from levada.destinations.decimal_text import decimal_text
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
_YEAR: Final = re.compile(r"(-?\d+)(-\d\d-.*)")
# The first day of the year 1, and the last one of the year 9999.
_FIRST_DAY: Final = -719_162
_LAST_DAY: Final = 2_932_896
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
    if kind.kind is Kind.DECIMAL:
        return _quoted(decimal_text(elements))
    if kind.kind in (Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ):
        return _quoted(_days(elements, "+00" if kind.kind is Kind.TIMESTAMPTZ else ""))
    if kind.kind is Kind.TEXT or kind.kind is Kind.UUID:
        return _quoted(_escaped(elements))
    return _quoted(pc.cast(elements, pa.string()))


def _days(values: pa.Array, zone: str) -> pa.Array:
    """Return dates or timestamps as PostgreSQL prints them.

    Arrow's text has no year before 1 as PostgreSQL has it, and an error in place of a year after 32767.
    """
    is_date = pa.types.is_date(values.type)
    number, unit, day = (pa.int32(), "D", 1) if is_date else (pa.int64(), "us", 86_400_000_000)
    plain, numbers = values if is_date else values.cast(pa.timestamp("us")), values.view(number)
    odd = pc.or_(pc.less(numbers, _FIRST_DAY * day), pc.greater_equal(numbers, (_LAST_DAY + 1) * day))
    odd = pc.fill_null(odd, False)
    shown = pc.if_else(odd, pa.scalar(0, number), numbers).view(plain.type)
    texts = pc.binary_join_element_wise(pc.cast(shown, pa.string()), zone, "")
    if not pc.any(odd).as_py():
        return texts
    exact = np.datetime_as_string(pc.filter(numbers, odd).to_numpy().astype(f"datetime64[{unit}]"))
    return pc.replace_with_mask(texts, odd, pa.array([_with_era(str(t), zone) for t in exact], pa.string()))


def _with_era(text: str, zone: str) -> str:
    """Return the text of a day by ISO 8601, in which 1 BC is the year 0, as PostgreSQL prints it."""
    found = _YEAR.fullmatch(text.replace("T", " "))
    assert found is not None
    year = int(found[1])
    return f"{year:04d}{found[2]}{zone}" if year > 0 else f"{1 - year:04d}{found[2]}{zone} BC"


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
