"""Values of rows that the source has deleted, in the type that their column has in a new copy. Pure.

The source cannot convert them any more. So they are converted only where the new value is certain: numbers that stay
equal, and texts as PostgreSQL prints them. Arrow's own casts would make `1E-8` of `0.00000001`, the bytes of a bytea a
text, and a moment of a number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from levada.destinations.arrow_text import decimal_text, map_text
from levada.destinations.temporal_text import temporal_text
from levada.pgoutput.temporal import date_text, timestamp_text

_Is = Callable[[pa.DataType], bool]


class NoConversionError(Exception):
    """A value has no certain counterpart in the type. There is no value in the message."""


def converted(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the values in another type. NULL stays NULL. Raise `NoConversionError` if one has no counterpart."""
    if values.null_count == len(values):
        return pa.nulls(len(values), kind)
    try:
        if pa.types.is_string(kind):
            return _text(values)
        if any(of(values.type) and to(kind) for of, to in _EXACT):
            return _exact(values, kind)
    except pa.ArrowInvalid:
        # Arrow's message contains the value.
        raise NoConversionError from None
    raise NoConversionError


def _exact(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the values by Arrow's cast, where that returns them exactly or raises an error."""
    if pa.types.is_decimal(kind) and pa.types.is_decimal(values.type):
        # Within 128 bits, Arrow does not notice each overflow.
        return (
            values.cast(pa.decimal256(_MOST_DIGITS, values.type.scale))
            .cast(pa.decimal256(_MOST_DIGITS, kind.scale))
            .cast(kind)
        )
    if pa.types.is_decimal(kind) and pa.types.is_string(values.type):
        whole, scale = kind.precision - kind.scale, kind.scale
        _require(pc.match_substring_regex(values, rf"^[+-]?0*\d{{0,{whole}}}(\.\d{{0,{scale}}}0*)?$"))
        values = pc.replace_substring_regex(values, rf"(\.\d{{{scale}}})0+$", r"\1")
    found = values.cast(kind)
    if pa.types.is_floating(kind) and pa.types.is_string(values.type):
        # PostgreSQL raises an error for what Arrow makes infinite or 0.
        usual = pc.and_(pc.is_finite(found), pc.not_equal(found, pa.scalar(0, kind)))
        _require(pc.or_(usual, pc.match_substring_regex(values, _NO_USUAL_FLOAT)))
    return found


def _require(fits: pa.Array) -> None:
    """Raise `NoConversionError` if any is False."""
    if not pc.all(fits, min_count=0).as_py():
        raise NoConversionError


def _text(values: pa.Array) -> pa.Array:
    kind = values.type
    if pa.types.is_integer(kind):
        return values.cast(pa.string())
    if pa.types.is_boolean(kind):
        return pc.if_else(values, "t", "f")
    if pa.types.is_decimal(kind):
        return decimal_text(values)
    if pa.types.is_date(kind):
        return temporal_text(values, date_text)
    if pa.types.is_timestamp(kind):
        zone = "+00" if kind.tz else ""
        text = temporal_text(values, lambda n: timestamp_text(n, zone=bool(zone)), zone=zone)
        # PostgreSQL prints no zeros at the end of a fraction.
        text = pc.replace_substring_regex(text, r"(\.\d*?)0+(\D|$)", r"\1\2")
        return pc.replace_substring_regex(text, r"\.(\D|$)", r"\1")
    if pa.types.is_map(kind):
        return map_text(values)
    raise NoConversionError


def _is_naive(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) and kind.tz is None)


_PARSED: Final[Sequence[_Is]] = (
    *(pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal),
    *(pa.types.is_boolean, pa.types.is_date, pa.types.is_timestamp),
)
_EXACT: Final[Sequence[tuple[_Is, _Is]]] = (
    *((pa.types.is_integer, to) for to in (pa.types.is_integer, pa.types.is_float64, pa.types.is_decimal)),
    *((pa.types.is_decimal, to) for to in (pa.types.is_decimal, pa.types.is_integer)),
    (pa.types.is_float32, pa.types.is_float64),
    (pa.types.is_date, _is_naive),
    *((pa.types.is_string, to) for to in _PARSED),
)
"""The conversions that keep a value or raise an error."""
_MOST_DIGITS: Final = 76
"""The digits of Arrow's largest decimal."""
_NO_USUAL_FLOAT: Final = r"(?i)^(nan|[+-]?(inf|infinity|0*\.?0*(e[+-]?\d+)?))$"
"""The texts of NaN, the infinities and 0."""
