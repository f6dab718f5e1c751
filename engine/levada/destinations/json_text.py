"""Arrow columns as JSON text, a whole column at a time. Pure.

Each function returns a large_string array with the JSON of each value, and ``null`` for NULL.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from levada.destinations.temporal_text import temporal_text

_ESCAPES: Final = {8: b"\\b", 9: b"\\t", 10: b"\\n", 12: b"\\f", 13: b"\\r"}
_ZERO: Final = b"\0"
_YEAR: Final = re.compile(r"(-?)(\d+)(-.*)")


def joined(*parts: pa.Array | str, separator: str = "") -> pa.Array:
    """Return the texts of each row, joined. A plain string is the same in each row. At least one part is an array."""
    columns = [_constant(p) if isinstance(p, str) else _large(p) for p in parts]
    return pc.binary_join_element_wise(*columns, _constant(separator))


def or_null(text: pa.Array, valid: pa.Array) -> pa.Array:
    """Return ``text`` with ``null`` where ``valid`` is False."""
    return pc.if_else(valid, text, _constant("null"))


def quoted(values: pa.Array) -> pa.Array:
    """Return texts as JSON strings. PostgreSQL's texts have no NUL character."""
    n = len(values)
    texts = pc.fill_null(pc.cast(values, pa.large_string()), "")
    # Escape the whole column as one byte string, with a NUL after each value.
    data = _data(joined(texts, "\0"))
    data = data.replace(b"\\", b"\\\\").replace(b'"', b'\\"')
    for code in range(1, 32):
        if (character := bytes((code,))) in data:
            data = data.replace(character, _ESCAPES.get(code, b"\\u%04x" % code))
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == 0)
    if len(ends) != n:
        raise ValueError("a text contains a NUL character")
    # The NUL after value i becomes the quote that ends it and the one that begins the next value.
    offsets = np.zeros(n + 1, np.int64)
    offsets[1:] = ends + np.arange(n) + 2
    return or_null(_strings(offsets, b'"' + data.replace(_ZERO, b'""')), values.is_valid())


def surrounded(values: pa.Array) -> pa.Array:
    """Return texts that need no escapes as JSON strings."""
    return or_null(joined('"', pc.fill_null(_large(values), ""), '"'), values.is_valid())


def integers(values: pa.Array) -> pa.Array:
    """Return integers as JSON numbers."""
    return pc.fill_null(_large(pc.cast(values, pa.string())), "null")


def booleans(values: pa.Array) -> pa.Array:
    """Return booleans as ``true`` and ``false``."""
    return pc.fill_null(_large(pc.cast(values, pa.string())), "null")


def floats(values: pa.Array) -> pa.Array:
    """Return floats as JSON numbers with the shortest text of the double, and NaN and infinity as strings."""
    doubles = pc.cast(values, pa.float64())
    text = pc.fill_null(_large(pc.cast(doubles, pa.string())), "null")
    text = pc.if_else(pc.fill_null(pc.equal(text, "-0"), False), _constant("-0.0"), text)
    if pc.all(pc.is_finite(doubles)).as_py() in (True, None):
        return text
    for name, found in (
        ('"NaN"', pc.is_nan(doubles)),
        ('"Infinity"', pc.equal(doubles, float("inf"))),
        ('"-Infinity"', pc.equal(doubles, float("-inf"))),
    ):
        text = pc.if_else(pc.fill_null(found, False), _constant(name), text)
    return text


def dates(values: pa.Array) -> pa.Array:
    """Return the ISO 8601 text of dates. The year 1 BC is 0000. NULL stays NULL."""
    return temporal_text(values, lambda n: _iso(np.datetime64(n, "D")))


def timestamps(values: pa.Array) -> pa.Array:
    """Return the ISO 8601 text of timestamps in microseconds, with ``Z`` if they have a time zone. NULL stays NULL."""
    zone = "Z" if values.type.tz else ""
    text = temporal_text(values, lambda n: _iso(np.datetime64(n, "us")) + zone, zone=zone)
    return pc.replace_substring(text, " ", "T", max_replacements=1)


def _iso(moment: np.datetime64) -> str:
    found = _YEAR.fullmatch(str(moment))
    assert found is not None
    return f"{found[1]}{found[2]:0>4}{found[3]}"


def base64(values: pa.Array) -> pa.Array:
    """Return the base64 text of byte strings. NULL stays NULL."""
    values = pc.cast(values, pa.large_binary())
    n = len(values)
    if not n:
        return pa.array([], pa.large_string())
    offsets = np.frombuffer(values.buffers()[1], np.int64)[values.offset : values.offset + n + 1]
    data = np.frombuffer(values.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
    lengths = np.diff(offsets)
    # Each value begins at a multiple of three bytes, so that all are encoded as one byte string.
    groups = (lengths + 2) // 3
    starts = np.concatenate([[0], np.cumsum(groups)])
    padded = np.zeros(int(starts[-1]) * 3, np.uint8)
    shift = np.repeat(starts[:-1] * 3 - (offsets[:-1] - offsets[0]), lengths)
    padded[np.arange(len(shift)) + shift] = data
    encoded = np.frombuffer(binascii.b2a_base64(padded.tobytes(), newline=False), np.uint8).copy()
    ends = starts[1:] * 4
    encoded[ends[lengths % 3 != 0] - 1] = ord("=")
    encoded[ends[lengths % 3 == 1] - 2] = ord("=")
    text = _strings(starts * 4, encoded.tobytes())
    return pc.if_else(values.is_valid(), text, pa.scalar(None, pa.large_string()))


def lists(values: pa.Array, elements: pa.Array) -> pa.Array:
    """Return lists as JSON arrays. ``elements`` has the JSON of the elements of ``values.flatten()``."""
    lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy().astype(np.int64)
    nested = pa.LargeListArray.from_arrays(pa.array(np.concatenate([[0], np.cumsum(lengths)])), elements)
    return or_null(joined("[", pc.binary_join(nested, _constant(",")), "]"), values.is_valid())


def maps(values: pa.MapArray) -> pa.Array:
    """Return maps from text to text as JSON objects with the same keys."""
    keys, texts, offsets = _entries(values)
    members = joined(quoted(keys), quoted(texts), separator=":")
    return or_null(joined("{", _joined_lists(offsets, members), "}"), values.is_valid())


def map_pairs(values: pa.MapArray) -> pa.Array:
    """Return maps from text to text as JSON arrays of objects with a ``key`` and a ``value``."""
    keys, texts, offsets = _entries(values)
    pairs = objects(("key", "value"), [quoted(keys), quoted(texts)], keys.is_valid())
    return or_null(joined("[", _joined_lists(offsets, pairs), "]"), values.is_valid())


def _entries(values: pa.MapArray) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Return the keys and the values of all maps, and the offsets of each map's among them."""
    first, last = (values.offsets[i].as_py() if len(values) else 0 for i in (0, -1))
    keys, texts = (part.slice(first, last - first) for part in (values.keys, values.items))
    return keys, texts, pc.subtract(values.offsets, pa.scalar(first, pa.int32())).cast(pa.int64())


def _joined_lists(offsets: pa.Array, elements: pa.Array) -> pa.Array:
    return pc.binary_join(pa.LargeListArray.from_arrays(offsets, elements), _constant(","))


def objects(names: Sequence[str], parts: Sequence[pa.Array], valid: pa.Array) -> pa.Array:
    """Return JSON objects, and ``null`` where ``valid`` is False. ``parts`` has the JSON of each field by row."""
    pieces: list[pa.Array | str] = []
    for name, part in zip(names, parts, strict=True):
        pieces += [f'{"," if pieces else "{"}"{name}":', part]
    return or_null(joined(*pieces, "}"), valid)


def _large(values: pa.Array) -> pa.Array:
    return pc.cast(values, pa.large_string())


def _constant(text: str) -> pa.Scalar:
    return pa.scalar(text, pa.large_string())


def _data(values: pa.Array) -> bytes:
    offsets = np.frombuffer(values.buffers()[1], np.int64)[values.offset : values.offset + len(values) + 1]
    buffer = values.buffers()[2]
    return b"" if buffer is None else bytes(memoryview(buffer)[offsets[0] : offsets[-1]])


def _strings(offsets: np.ndarray[tuple[int], np.dtype[np.int64]], data: bytes) -> pa.Array:
    buffers = [None, pa.py_buffer(offsets.astype(np.int64).tobytes()), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_string(), len(offsets) - 1, buffers)
