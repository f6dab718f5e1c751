"""PostgreSQL's binary format, decoded exactly to Arrow columns (PostgreSQL's ``*_send`` functions)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import pyarrow as pa

from levada.pgoutput.messages import POSTGRES_EPOCH_US
from levada.pgoutput.numeric import decode_numeric
from levada.pgoutput.temporal import US_PER_DAY, timestamp_text
from levada.pgoutput.vectors import decode_binary_vector
from levada.pgoutput.wire import (
    Bools,
    Decoded,
    Ints,
    Refused,
    RowError,
    Values,
    booleans,
    cut,
    fixed,
    strings,
)
from levada.schema import ColumnType, Kind
from levada.schema.types import Notation

_EPOCH_DAYS: Final = POSTGRES_EPOCH_US // US_PER_DAY
_INT4: Final = np.iinfo(np.int32)
_INT8: Final = np.iinfo(np.int64)
_JSONB_VERSION: Final = 1

BinaryDecoder = Callable[[Values, ColumnType], Decoded]


def require_size(values: Values, size: int) -> None:
    """Raise `RowError` for a value that has another size in bytes."""
    wrong = values.only_valid(values.length != size)
    if wrong.any():
        raise RowError(int(wrong.argmax()), f"a value that does not have {size} bytes")


def _number(dtype: str) -> BinaryDecoder:
    size = np.dtype(dtype).itemsize

    def decode(values: Values, column: ColumnType) -> Decoded:
        require_size(values, size)
        return Decoded(
            fixed(values.read(dtype).astype(column.arrow.to_pandas_dtype(), copy=False), values.valid, column.arrow)
        )

    return decode


def _bool(values: Values, _: ColumnType) -> Decoded:
    require_size(values, 1)
    return Decoded(booleans(values.first_bytes() != 0, values.valid))


def _bytea(values: Values, _: ColumnType) -> Decoded:
    return Decoded(cut(values, pa.binary()))


def _json(values: Values, _: ColumnType) -> Decoded:
    """Decode json and jsonb.

    The binary format of jsonb is its text after a version byte. No text of json begins with that byte.
    """
    versioned = (values.first_bytes() == _JSONB_VERSION) & (values.length > 0)
    return Decoded(strings(Values(values.buffer, values.start + versioned, values.length - versioned, values.valid)))


_HEX: Final = np.frombuffer(b"".join(b"%02x" % i for i in range(256)), "u2")
_PARTS: Final = {"1": "u8", "2": "u4", "3": "u4", "4": "u4", "5": "u8", "6": "u4"}
"""The 32 hexadecimal digits of a UUID, in parts that are copied as numbers. The last two belong together."""
_DASHES: Final = {"-1": 8, "-2": 13, "-3": 18, "-4": 23}
_DIGITS: Final = np.dtype(list(_PARTS.items()))
_TEXT: Final = np.dtype(
    {
        "names": [*_PARTS, *_DASHES],
        "formats": [*_PARTS.values(), *["u1"] * len(_DASHES)],
        "offsets": [0, 9, 14, 19, 24, 32, *_DASHES.values()],
    }
)
"""The 36 characters of a UUID."""


def _uuid(values: Values, _: ColumnType) -> Decoded:
    require_size(values, 16)
    count = len(values)
    raw = np.ascontiguousarray(values.buffer.view("V16")[values.start]).view(np.uint8)
    digits = _HEX.take(raw).view(_DIGITS)
    text = np.empty(count, _TEXT)
    for part in _PARTS:
        text[part] = digits[part]
    for dash in _DASHES:
        text[dash] = ord("-")
    offsets = np.arange(0, 36 * (count + 1), 36, dtype=np.int32)
    array = pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(text)])
    return Decoded(array if values.valid is None else _masked(array, values.valid))


def _masked(array: pa.Array, valid: Bools) -> pa.Array:
    return array.take(fixed(np.arange(len(array), dtype=np.int64), valid, pa.int64()))


def _date(values: Values, column: ColumnType) -> Decoded:
    require_size(values, 4)
    days = values.read(">i4").astype(np.int64)
    infinite = values.only_valid((days == _INT4.max) | (days == _INT4.min))
    return _unless(
        values, (days + _EPOCH_DAYS).astype(np.int32), infinite, column, lambda rows: _infinities(days[rows])
    )


def _timestamp(values: Values, column: ColumnType) -> Decoded:
    require_size(values, 8)
    us = values.read(">i8")
    # The largest timestamps do not fit in 64 bits when counted from 1970. The last number is infinity for some readers.
    refused = values.only_valid((us >= _INT8.max - POSTGRES_EPOCH_US) | (us == _INT8.min))
    zone = column.kind is Kind.TIMESTAMPTZ
    return _unless(values, us + POSTGRES_EPOCH_US, refused, column, lambda rows: _timestamp_texts(us[rows], zone=zone))


def _time(values: Values, column: ColumnType) -> Decoded:
    require_size(values, 8)
    us = values.read(">i8")
    wrong = values.only_valid((us < 0) | (us > US_PER_DAY))
    if wrong.any():
        raise RowError(int(wrong.argmax()), "an invalid time")
    return _unless(values, us, values.only_valid(us == US_PER_DAY), column, lambda rows: ["24:00:00"] * len(rows))


def _unless(
    values: Values, numbers: Ints, refused: Bools, column: ColumnType, texts: Callable[[Ints], list[str]]
) -> Decoded:
    """Return ``numbers`` as an Arrow column that is NULL where ``refused``. ``texts`` formats the refused rows."""
    if not refused.any():
        return Decoded(fixed(numbers, values.valid, column.arrow))
    rows = np.flatnonzero(refused)
    return Decoded(fixed(numbers, values.where(~refused).valid, column.arrow), Refused(rows, texts(rows)))


def _infinities(numbers: Ints) -> list[str]:
    return ["infinity" if n > 0 else "-infinity" for n in numbers.tolist()]


def _timestamp_texts(us: Ints, *, zone: bool) -> list[str]:
    ends = (int(_INT8.max), int(_INT8.min))
    return [
        ("infinity" if n > 0 else "-infinity") if n in ends else timestamp_text(n + POSTGRES_EPOCH_US, zone=zone)
        for n in us.tolist()
    ]


BINARY: Final[Mapping[Kind, BinaryDecoder]] = {
    Kind.BOOL: _bool,
    Kind.INT2: _number(">i2"),
    Kind.INT4: _number(">i4"),
    Kind.INT8: _number(">i8"),
    Kind.OID: _number(">u4"),
    Kind.FLOAT4: _number(">f4"),
    Kind.FLOAT8: _number(">f8"),
    Kind.DECIMAL: decode_numeric,
    Kind.BYTEA: _bytea,
    Kind.DATE: _date,
    Kind.TIME: _time,
    Kind.TIMESTAMP: _timestamp,
    Kind.TIMESTAMPTZ: _timestamp,
    Kind.UUID: _uuid,
    Kind.JSON: _json,
}
"""The decoders by kind. Arrays and TEXT (any type without an Arrow type of its own) are sent as text and have none."""


def binary_decoder(column: ColumnType) -> BinaryDecoder | None:
    """Return the decoder of a column's binary format, None for a type whose copy reads text."""
    if column.notation is Notation.PLAIN:
        return BINARY.get(column.kind)
    return decode_binary_vector if column.notation in (Notation.VECTOR, Notation.HALFVEC) else None
