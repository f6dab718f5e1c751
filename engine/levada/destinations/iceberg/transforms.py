"""Iceberg's partition transforms over Arrow columns. Pure.

They follow Iceberg's specification ("Partition Transforms" and appendix B), and NULL is always NULL. PyIceberg has them
too, but needs a native library of 60 MB for them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_PARAMETER: Final = re.compile(r"(bucket|truncate)\[(\d+)\]")
_DECIMAL: Final = re.compile(r"decimal\((\d+), ?(\d+)\)")
_NUMBERS: Final = ("int", "long", "decimal")
_TIMES: Final = ("date", "timestamp", "timestamptz")
_TEXTS: Final = ("string", "binary")
_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    # A float as a partition would distinguish the two zeros and the bits of NaN. PostgreSQL does not.
    "identity": ("boolean", *_NUMBERS, *_TIMES, *_TEXTS),
    "bucket": (*_NUMBERS, *_TIMES, *_TEXTS),
    "truncate": (*_NUMBERS, *_TEXTS),
    "year": _TIMES,
    "month": _TIMES,
    "day": _TIMES,
    "hour": ("timestamp", "timestamptz"),
}
_INT: Final = (-(2**31), 2**31 - 1)
_LONG: Final = (-(2**63), 2**63 - 1)
_HOUR_US: Final = 3_600_000_000
_UNITS: Final = {"year": "Y", "month": "M", "day": "D", "hour": "h"}

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint32]


def fitting_types(transform: str) -> tuple[str, ...]:
    """Return Iceberg's types that a transform takes. A decimal is without its precision."""
    return _TYPES[_name(transform)]


def fits(transform: str, kind: object) -> bool:
    """Return True if the transform takes columns of this Iceberg type."""
    return isinstance(kind, str) and kind.partition("(")[0] in fitting_types(transform)


def result_type(transform: str, kind: str) -> str:
    """Return the Iceberg type of the transformed values, for a type that the transform takes."""
    name = _name(transform)
    if name in ("identity", "truncate"):
        return kind
    return "date" if name == "day" else "int"


def representable(transform: str, kind: str) -> tuple[int | Decimal, int | Decimal] | None:
    """Return the lowest and the highest value whose transform its result type can hold, or None without a limit.

    Moments are in microseconds. Below and above, Spark's writer lets the result wrap, so that filters miss the row.
    """
    name, found = kind.partition("(")[0], _PARAMETER.fullmatch(transform)
    if transform == "hour":
        return _INT[0] * _HOUR_US, (_INT[1] + 1) * _HOUR_US - 1
    if found is None or found[1] != "truncate" or name not in _NUMBERS:
        return None
    if name != "decimal":
        low, high = _INT if name == "int" else _LONG
        return _lowest_multiple(low, int(found[2])), high
    precision, scale = map(int, _DECIMAL.fullmatch(kind).groups())  # type: ignore[union-attr]  # every decimal has both
    high = 10**precision - 1
    return _unscaled(_lowest_multiple(-high, int(found[2])), scale), _unscaled(high, scale)


def exceeds(transform: str, kind: str, column: pa.Array) -> bool:
    """Return True if a value of the column is not `representable`."""
    limits = representable(transform, kind)
    if limits is None or column.null_count == len(column):
        return False
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz)).view(pa.int64())
    held = pc.min_max(column).as_py()
    return bool(held["min"] < limits[0] or held["max"] > limits[1])


def _lowest_multiple(low: int, width: int) -> int:
    return -(-low // width * width)


def _unscaled(number: int, scale: int) -> Decimal:
    # The constructor is exact. Arithmetic would round to the context's precision.
    return Decimal((number < 0, tuple(map(int, str(abs(number)))), -scale))


def transformed(transform: str, column: pa.Array) -> pa.Array:
    """Return the values of a transform, in the Arrow type of its result.

    A result that this type cannot hold is the nearest that it can. Order is kept, as `sortBy` needs.
    """
    found = _PARAMETER.fullmatch(transform)
    if transform == "identity":
        return column
    if found is None:
        return _time(column, _UNITS[transform])
    number = int(found[2])
    return _bucket(column, number) if found[1] == "bucket" else _truncate(column, number)


def _name(transform: str) -> str:
    return transform.partition("[")[0]


def _masked(values: npt.NDArray[Any], column: pa.Array, kind: pa.DataType) -> pa.Array:
    return pa.array(
        values, kind, mask=None if not column.null_count else column.is_null().to_numpy(zero_copy_only=False)
    )


def _ints(column: pa.Array) -> Ints:
    """Return the integers of a column: its values, days or microseconds. NULL is 0."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us", kind.tz)).view(pa.int64())
    elif pa.types.is_date32(kind):
        column = column.view(pa.int32())
    if column.null_count:
        column = column.fill_null(0)
    values: Ints = column.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return values


def _time(column: pa.Array, unit: str) -> pa.Array:
    held = "D" if pa.types.is_date32(column.type) else "us"
    # numpy rounds down, also before 1970.
    moments = _ints(column).view(f"datetime64[{held}]")
    values = np.clip(moments.astype(f"datetime64[{unit}]").view(np.int64), *_INT).astype(np.int32)
    return _masked(values, column, pa.date32() if unit == "D" else pa.int32())


def _truncate(column: pa.Array, width: int) -> pa.Array:
    kind = column.type
    if pa.types.is_string(kind):
        # Arrow counts code points here, as Iceberg does.
        return pc.utf8_slice_codeunits(column, 0, width)
    if pa.types.is_binary(kind):
        return pc.binary_slice(column, 0, width)
    if pa.types.is_decimal(kind):
        return _truncate_decimal(column, width)
    values = _ints(column)
    low = _INT[0] if pa.types.is_int32(kind) else _LONG[0]
    rest = np.mod(values, width)
    cut = np.where(values < low + rest, low, values - rest)
    return _masked(cut.astype(kind.to_pandas_dtype()), column, kind)


def _decimal_words(column: pa.Array) -> tuple[npt.NDArray[np.uint64], Ints]:
    """Return the low and the high halves of a decimal column's unscaled values."""
    held = np.frombuffer(column.buffers()[1] or b"", np.uint64)
    mine = held[2 * column.offset : 2 * (column.offset + len(column))].reshape(-1, 2)
    return mine[:, 0], mine[:, 1].astype(np.int64)


def _truncate_decimal(column: pa.Array, width: int) -> pa.Array:
    low, high = _decimal_words(column)
    # The value is high * 2^64 + low. All products are below 2^62, because the width is below 2^30.
    w = np.uint64(width)
    rest = (np.mod(high, width).astype(np.uint64) * np.uint64(2**64 % width) + low % w) % w
    out = np.empty((len(low), 2), np.uint64)
    out[:, 0] = low - rest
    out[:, 1] = (high - (low < rest)).view(np.uint64)
    valid = None if not column.null_count else column.is_valid()
    mask = None if valid is None else pa.array(valid).buffers()[1]
    return pa.Array.from_buffers(column.type, len(column), [mask, pa.py_buffer(out)])


# -- bucket: the 32-bit MurmurHash3, as in appendix B


def _bucket(column: pa.Array, buckets: int) -> pa.Array:
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        hashes = _hash_bytes(*_bytes_of(column))
    elif pa.types.is_decimal(kind):
        hashes = _hash_bytes(*_decimal_bytes(column))
    else:
        hashes = _hash_longs(_ints(column))
    values = (hashes & np.uint32(0x7FFFFFFF)) % np.uint32(buckets)
    return _masked(values.astype(np.int32), column, pa.int32())


def _hash_longs(values: Ints) -> Words:
    words = values.astype("<i8").view(np.uint32).reshape(-1, 2)
    with np.errstate(over="ignore"):
        state = _mixed(np.zeros(len(values), np.uint32), words[:, 0])
        return _finished(_mixed(state, words[:, 1]), np.full(len(values), 8, np.uint32))


def _bytes_of(column: pa.Array) -> tuple[npt.NDArray[np.uint8], Ints, Ints]:
    """Return the data of a column of texts or bytes, and the begin and the length of each value in it."""
    if not len(column):
        return np.empty(0, np.uint8), np.empty(0, np.int64), np.empty(0, np.int64)
    offsets = np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]
    data = np.frombuffer(column.buffers()[2] or b"", np.uint8)
    begins, lengths = offsets[:-1].astype(np.int64), np.diff(offsets).astype(np.int64)
    return data, begins, np.where(column.is_valid().to_numpy(zero_copy_only=False), lengths, 0)


def _decimal_bytes(column: pa.Array) -> tuple[npt.NDArray[np.uint8], Ints, Ints]:
    """Return the unscaled values as the shortest big-endian numbers in two's complement, as `_bytes_of`."""
    low, high = _decimal_words(column)
    data = np.empty((len(low), 16), np.uint8)
    data[:, :8] = high.astype(">i8").view(np.uint8).reshape(-1, 8)
    data[:, 8:] = low.astype(">u8").view(np.uint8).reshape(-1, 8)
    sign = np.where(data[:, :1] >= 0x80, np.uint8(0xFF), np.uint8(0))
    # A leading byte is left out if it only repeats the sign bit of the next one.
    idle = (data[:, :-1] == sign) & ((data[:, 1:] >= 0x80) == (sign == 0xFF))
    skipped = np.cumprod(idle, axis=1, dtype=np.int64).sum(axis=1)
    return data.reshape(-1), np.arange(len(low), dtype=np.int64) * 16 + skipped, 16 - skipped


def _hash_bytes(data: npt.NDArray[np.uint8], begins: Ints, lengths: Ints) -> Words:
    """Return the hashes of byte strings. The values are visited four bytes at a time, longest first."""
    order = np.argsort(-lengths, kind="stable")
    blocks = lengths[order] // 4
    state = np.zeros(len(lengths), np.uint32)
    padded = np.concatenate([data, np.zeros(4, np.uint8)])
    with np.errstate(over="ignore"):
        for i in range(int(blocks[0]) if len(blocks) else 0):
            active = order[: np.searchsorted(-blocks, -i, side="left")]
            state[active] = _mixed(state[active], _word(padded, begins[active] + 4 * i, 4))
        tails = lengths % 4
        for size in (1, 2, 3):
            mine = np.flatnonzero(tails == size)
            word = _word(padded, begins[mine] + lengths[mine] - size, size)
            state[mine] ^= _scrambled(word)
        return _finished(state, lengths.astype(np.uint32))


def _word(data: npt.NDArray[np.uint8], at: Ints, size: int) -> Words:
    word = np.zeros(len(at), np.uint32)
    for i in range(size):
        word |= data[at + i].astype(np.uint32) << np.uint32(8 * i)
    return word


def _rotated(words: Words, bits: int) -> Words:
    return (words << np.uint32(bits)) | (words >> np.uint32(32 - bits))


def _scrambled(words: Words) -> Words:
    return _rotated(words * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)


def _mixed(state: Words, words: Words) -> Words:
    return _rotated(state ^ _scrambled(words), 13) * np.uint32(5) + np.uint32(0xE6546B64)


def _finished(state: Words, lengths: Words) -> Words:
    state = state ^ lengths
    state = (state ^ (state >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    state = (state ^ (state >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return state ^ (state >> np.uint32(16))


# -- single values, as JSON in appendix D


def json_value(kind: str, value: pa.Scalar) -> Any:
    """Return a value of an Iceberg type in the form that JSON has for it."""
    if not value.is_valid:
        return None
    name = kind.partition("(")[0]
    if name == "date":
        return _iso(np.datetime64(value.value, "D"))
    if name in ("timestamp", "timestamptz"):
        return _iso(np.datetime64(value.value, "us")) + ("+00:00" if name == "timestamptz" else "")
    if name == "decimal":
        scale = int(_DECIMAL.fullmatch(kind)[2])  # type: ignore[index]  # every decimal has a scale
        # format() never writes an exponent here.
        return f"{value.as_py():.{scale}f}"
    if name == "binary":
        return value.as_py().hex().upper()
    return value.as_py()


def _iso(moment: np.datetime64) -> str:
    year, rest = re.fullmatch(r"(-?\d+)(-.*)", str(moment)).groups()  # type: ignore[union-attr]  # numpy's form
    # Java needs four digits, and marks years above 9999 by a sign.
    sign = "-" if year[0] == "-" else "+" if len(year) > 4 else ""
    return f"{sign}{year.lstrip('-'):0>4}{rest}"
