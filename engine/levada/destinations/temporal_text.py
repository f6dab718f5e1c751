"""Dates and timestamps as text, a whole column at a time. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

_FIRST_DAY: Final = -719_162
"""0001-01-01 in days since 1970-01-01. Arrow formats the days from here to 9999-12-31 as PostgreSQL does."""
_LAST_DAY: Final = 2_932_896
_DAY_US: Final = 86_400_000_000


def temporal_text(
    values: pa.Array, odd_text: Callable[[int], str], *, zone: str = "", kind: pa.DataType | None = None
) -> pa.Array:
    """Return the text of dates, or of timestamps in microseconds, as Arrow strings of the type ``kind``.

    The days from 0001-01-01 to 9999-12-31 have Arrow's text, and ``zone`` behind it. ``odd_text`` returns the text of
    any other value, from its number of days or microseconds. It is called for each, because such days are rare.
    NULL stays NULL.
    """
    kind = kind or pa.string()
    if pa.types.is_date(values.type):
        numbers, plain, unit = values.view(pa.int32()), values, 1
    else:
        numbers, unit = values.view(pa.int64()), _DAY_US
        plain = numbers.view(pa.timestamp("us"))
    beyond = pc.or_(pc.less(numbers, _FIRST_DAY * unit), pc.greater_equal(numbers, (_LAST_DAY + 1) * unit))
    odd = pc.fill_null(beyond, False)
    any_odd = bool(pc.any(odd).as_py())
    text = pc.cast(pc.if_else(odd, pa.scalar(None, plain.type), plain) if any_odd else plain, kind)
    if zone:
        text = pc.binary_join_element_wise(text, pa.scalar(zone, kind), pa.scalar("", kind))
    if any_odd:
        shown = pa.array([odd_text(n) for n in numbers.filter(odd).to_pylist()], kind)
        text = pc.replace_with_mask(text, odd, shown)
    return text
