"""PostgreSQL's text format, decoded exactly to Arrow columns.

Arrow's casts convert a whole column. Values that they do not parse (infinity, BC, years beyond 9999, unusual time
zones) are converted one by one by `levada.pgoutput.temporal`.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from levada.errors import DecodeError
from levada.pgoutput.arrays import decode_array
from levada.pgoutput.hstore import decode_hstore
from levada.pgoutput.ranges import decode_range
from levada.pgoutput.temporal import date_days, timestamp_us
from levada.pgoutput.vectors import decode_vector
from levada.pgoutput.wire import (
    PADDING,
    Bools,
    Decoded,
    Ints,
    RowError,
    Values,
    WireBuffer,
    booleans,
    cut,
    overlay,
    strings,
    views,
)
from levada.schema import ColumnType, Kind
from levada.schema.types import Notation


def decode_text(values: Values, column: ColumnType) -> Decoded:
    """Decode a column of text values. Raise `RowError` for a text that PostgreSQL does not produce."""
    return _DECODERS[column.kind](values, column)


def parse_text(column: ColumnType, text: str) -> pa.Scalar:
    """Parse one value of PostgreSQL's text, NULL if the type cannot hold it. Raise DecodeError for an invalid text."""
    data = text.encode()
    values = Values(WireBuffer(data + PADDING), np.array([0]), np.array([len(data)]))
    try:
        return decode_text(values, column).array[0]
    except RowError as error:
        message = f"the source's value of an added column for rows that are older than the column is {error.what}"
        raise DecodeError("malformed_value", message) from None


def cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast text with Arrow. Raise `RowError` with the first value that Arrow rejects."""
    try:
        return pc.cast(array, kind)
    except pa.ArrowInvalid:
        raise RowError(_first_refused(array, kind), f"an invalid {kind}") from None


def _first_refused(array: pa.Array, kind: pa.DataType) -> int:
    """Return the index of the first value that cannot be cast, by binary search."""
    good, bad = 0, len(array)
    while bad - good > 1:
        middle = (good + bad) // 2
        try:
            pc.cast(array.slice(good, middle - good), kind)
            good = middle
        except pa.ArrowInvalid:
            bad = middle
    return good


def _castable(values: Values, column: ColumnType) -> Decoded:
    return Decoded(cast(views(values), column.arrow))


def _strings(values: Values, _: ColumnType) -> Decoded:
    return Decoded(strings(values))


def _bool(values: Values, _: ColumnType) -> Decoded:
    octets = values.first_bytes()
    true = octets == ord("t")
    wrong = values.only_valid((values.length != 1) | ~(true | (octets == ord("f"))))
    if wrong.any():
        raise RowError(int(wrong.argmax()), "an invalid bool")
    return Decoded(booleans(true, values.valid))


_EXACT_DIGITS: Final = 38
"""The digits up to which Arrow casts a text to a decimal exactly, or not at all.

It does not notice each number or power of ten that exceeds 128 bits.
"""


def _decimal(values: Values, column: ColumnType) -> Decoded:
    """Decode numerics. A value that exceeds the precision and scale is refused, as NaN is."""
    try:
        if _is_cast_exactly(values, column.scale):
            return Decoded(pc.cast(views(values), column.arrow))
    except pa.ArrowInvalid:
        pass
    octets = values.first_bytes()
    second = values.buffer.bytes[values.start + 1]
    refused = (octets == ord("N")) | (octets == ord("I")) | ((octets == ord("-")) & (second == ord("I")))
    refused = values.only_valid(refused)
    texts = strings(values.where(~refused))
    refused |= pc.fill_null(_exceeds(texts, column), False).to_numpy(zero_copy_only=False)
    # Arrow refuses zeros after the scale, but only if it does not have the digits for them.
    texts = pc.replace_substring_regex(strings(values.where(~refused)), rf"(\.\d{{{column.scale}}})0+$", r"\1")
    return Decoded(cast(texts, column.arrow), values.refuse(refused))


def _is_cast_exactly(values: Values, scale: int) -> bool:
    """Return True if all numbers have so few digits, as they are and at the scale, that Arrow's cast is exact."""
    longest = int(values.length.max(initial=0))
    if longest <= _EXACT_DIGITS - scale:
        return True
    if longest > len("-.") + _EXACT_DIGITS:
        return False
    point = pc.find_substring(strings(values), ".").fill_null(0).to_numpy()
    before = np.where(point < 0, values.length, point) - (values.first_bytes() == ord("-"))
    after = np.where(point < 0, 0, values.length - point - 1)
    return bool((before + np.maximum(after, scale)).max() <= _EXACT_DIGITS)


def _exceeds(texts: pa.Array, column: ColumnType) -> pa.Array:
    """Return a mask of the numbers with more digits than the type has, before or after the point."""
    whole, scale = column.precision - column.scale, column.scale
    digits = rf"(0|\d{{1,{whole}}})" if whole else "0"
    fits = pc.match_substring_regex(texts, rf"^-?{digits}(\.\d{{0,{scale}}}0*)?$")
    return pc.and_(pc.match_substring_regex(texts, r"^-?\d+(\.\d+)?$"), pc.invert(fits))


def _bytea(values: Values, column: ColumnType) -> Decoded:
    """Decode both formats of ``bytea_output``. In ``escape`` no value begins with a single backslash and an x."""
    if column.notation is Notation.EWKB:
        return Decoded(_unhex(_even(cut(values, pa.binary()))))
    hexadecimal = (
        (values.first_bytes() == ord("\\")) & (values.buffer.bytes[values.start + 1] == ord("x")) & (values.length >= 2)
    )
    escaped = values.only_valid(~hexadecimal)
    plain = values.where(hexadecimal)
    digits = np.where(hexadecimal, values.length - 2, 0)
    odd = plain.only_valid(digits % 2 == 1)
    if odd.any():
        raise RowError(int(odd.argmax()), "a bytea with an odd number of digits")
    text = cut(
        Values(values.buffer, np.where(hexadecimal, values.start + 2, values.start), digits, plain.valid), pa.binary()
    )
    array = _unhex(text)
    rows = np.flatnonzero(escaped)
    if not len(rows):
        return Decoded(array)
    return Decoded(overlay(array, rows, pa.array([_unescape(t, int(r)) for t, r in _pairs(values, rows)], pa.binary())))


def _pairs(values: Values, rows: Any) -> zip[tuple[str, Any]]:
    return zip(values.texts(rows), rows.tolist(), strict=True)


def _even(digits: pa.Array) -> pa.Array:
    odd = pc.fill_null(pc.equal(pc.bit_wise_and(pc.binary_length(digits), 1), 1), False)
    if pc.any(odd).as_py():
        raise RowError(pc.index(odd, True).as_py(), "an odd number of hexadecimal digits")
    return digits


def _unhex(text: pa.Array) -> pa.Array:
    validity, offsets, data = text.buffers()
    if data is None:
        return text
    ends = np.frombuffer(offsets, np.int32)[: len(text) + 1]
    try:
        octets = binascii.unhexlify(data.slice(int(ends[0]), int(ends[-1] - ends[0])))
    except binascii.Error:
        raise RowError(_first_not_hex(text), "an invalid bytea") from None
    halves = ((ends - ends[0]) // 2).astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), len(text), [validity, pa.py_buffer(halves), pa.py_buffer(octets)])


def _first_not_hex(text: pa.Array) -> int:
    for row, value in enumerate(text.to_pylist()):
        try:
            binascii.unhexlify(value or b"")
        except binascii.Error:
            return row
    return 0


def _unescape(text: str, row: int) -> bytes:
    out = bytearray()
    data = text.encode()
    at = 0
    while at < len(data):
        if data[at] != ord("\\"):
            out.append(data[at])
            at += 1
        elif data[at + 1 : at + 2] == b"\\":
            out.append(ord("\\"))
            at += 2
        else:
            digits = data[at + 1 : at + 4]
            if len(digits) != 3 or not all(0x30 <= d <= 0x37 for d in digits) or digits > b"377":
                raise RowError(row, "an invalid bytea")
            out.append(int(digits, 8))
            at += 4
    return bytes(out)


_FIRST_DASH: Final = 4
"""The index of the dash after a year of four digits."""


def _date(values: Values, column: ColumnType) -> Decoded:
    return _temporal(values, column, lambda: values.length != 10, date_days)


def _timestamp(values: Values, column: ColumnType) -> Decoded:
    return _temporal(values, column, lambda: _odd_timestamps(values), timestamp_us)


def _odd_timestamps(values: Values) -> Bools:
    """Return a mask of infinities, years before 1 AD or beyond 9999, and zones with seconds (``+00:19:32``)."""
    octets, end = values.buffer.bytes, values.start + values.length
    odd: Bools = (values.length < 19) | (octets[values.start + _FIRST_DASH] != ord("-")) | (octets[end - 1] == ord("C"))
    odd |= (octets[end - 3] == ord(":")) & (octets[end - 6] == ord(":"))
    return odd


def _temporal(
    values: Values, column: ColumnType, odd_ones: Callable[[], Bools], parse: Callable[[str], int | None]
) -> Decoded:
    """Cast with Arrow. If Arrow rejects a value, cast those that are not odd, and ``parse`` the others."""
    try:
        return Decoded(pc.cast(cut(values, pa.string()), column.arrow))
    except pa.ArrowInvalid:
        odd = values.only_valid(odd_ones())
    array = cast(cut(values.where(~odd), pa.string()), column.arrow)
    rows = np.flatnonzero(odd)
    texts = values.texts(rows)
    numbers = []
    for row, text in zip(rows.tolist(), texts, strict=True):
        try:
            numbers.append(parse(text))
        except ValueError:
            raise RowError(row, f"an invalid {column.kind}") from None
    width = pa.int32() if column.kind is Kind.DATE else pa.int64()
    array = overlay(array, rows, pa.array(numbers, width).view(column.arrow))
    none = np.array([n is None for n in numbers], np.bool_)
    return Decoded(array, values.refuse(_mask(len(values), rows[none])))


def _mask(size: int, rows: Ints) -> Bools:
    mask = np.zeros(size, np.bool_)
    mask[rows] = True
    return mask


def _time(values: Values, _: ColumnType) -> Decoded:
    end_of_day = values.only_valid(values.buffer.view("<u2")[values.start] == int.from_bytes(b"24", "little"))
    texts = cut(values.where(~end_of_day) if end_of_day.any() else values, pa.string())
    # Arrow casts text to a timestamp, but not to a time.
    stamps = cast(pc.binary_join_element_wise("1970-01-01", texts, " "), pa.timestamp("us"))
    return Decoded(stamps.view(pa.int64()).view(pa.time64("us")), values.refuse(end_of_day))


def _array(values: Values, column: ColumnType) -> Decoded:
    if column.notation in (Notation.PLAIN, Notation.MULTIRANGE):
        return decode_array(values, column, decode_text)
    return decode_vector(values, column, decode_text)


def _range(values: Values, column: ColumnType) -> Decoded:
    return decode_range(values, column, decode_text)


def _map(values: Values, _: ColumnType) -> Decoded:
    return Decoded(decode_hstore(values))


_DECODERS: Final[Mapping[Kind, Callable[[Values, ColumnType], Decoded]]] = {
    Kind.BOOL: _bool,
    Kind.INT2: _castable,
    Kind.INT4: _castable,
    Kind.INT8: _castable,
    Kind.OID: _castable,
    Kind.FLOAT4: _castable,
    Kind.FLOAT8: _castable,
    Kind.DECIMAL: _decimal,
    Kind.TEXT: _strings,
    Kind.BYTEA: _bytea,
    Kind.DATE: _date,
    Kind.TIME: _time,
    Kind.TIMESTAMP: _timestamp,
    Kind.TIMESTAMPTZ: _timestamp,
    Kind.UUID: _strings,
    Kind.JSON: _strings,
    Kind.ARRAY: _array,
    Kind.RANGE: _range,
    Kind.MAP: _map,
}
