"""Texts of a database whose encoding is not UTF8, converted to UTF-8 by the column.

The server would convert what it sends, and ends the stream of all tables at a text that it cannot convert. So it sends
its own bytes, and a text that cannot be converted concerns one value. Every encoding of a database has ASCII as it is,
and no byte of ASCII within another character (PostgreSQL manual, section "Character Set Support").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import pyarrow as pa

from levada.errors import LevadaError
from levada.pgoutput.wire import (
    PADDING,
    Bools,
    Decoded,
    Refused,
    Values,
    WireBuffer,
    cut,
    has_high_byte,
    overlay,
)
from levada.schema import ColumnType
from levada.schema.types import FREE_TEXTS

_HIGH: Final = 0x80


class TextConversion(Protocol):
    """Converts texts of the source's encoding to UTF-8."""

    def convert(self, texts: pa.Array) -> pa.Array:
        """Return texts, which are binary and not NULL, as strings. One that cannot be converted is NULL.

        Raise LevadaError if the conversion itself fails.
        """


@dataclass(frozen=True, slots=True)
class UnconvertibleTexts:
    """The texts of a database that its server cannot convert, as a condition in SQL with TEXT in place of a text."""

    condition: str

    def without(self, text: str, value: str) -> str:
        """Return the SQL of ``value``, or of NULL if ``text``, which is the value's text, cannot be converted."""
        return f"CASE WHEN {self.condition.replace('TEXT', text)} THEN NULL ELSE {value} END"


class ConversionError(Exception):
    """An error of the conversion, which concerns no table. ``error`` ends the session."""

    def __init__(self, error: LevadaError) -> None:
        super().__init__(error.message)
        self.error = error


def has_text(kind: ColumnType) -> bool:
    """Return True if a value's text may have other characters than those of ASCII."""
    return kind.kind in FREE_TEXTS or (kind.element is not None and has_text(kind.element))


def to_utf8(values: Values, conversion: TextConversion, *, secret: bool = False) -> tuple[Values, Refused | None]:
    """Return the values in UTF-8, and those that cannot be converted, which are NULL among them.

    A refused value has an escape in place of each byte that is not ASCII, and no text if it is ``secret``. Raise
    ConversionError.
    """
    texts = cut(values, pa.binary())
    if not has_high_byte(texts):
        return values, None
    rows = np.flatnonzero(_has_high_bytes(texts))
    try:
        converted = conversion.convert(texts.take(pa.array(rows)))
    except LevadaError as error:
        raise ConversionError(error) from error
    whole = overlay(texts, rows, converted.cast(pa.binary()))
    bad = rows[converted.is_null().to_numpy(zero_copy_only=False)]
    valid = ~whole.is_null().to_numpy(zero_copy_only=False)
    _, offsets, data = whole.buffers()
    ends = np.frombuffer(offsets, np.int32)[: len(whole) + 1].astype(np.int64)
    octets = b"" if data is None else data.to_pybytes()
    found = Values(WireBuffer(octets + PADDING), ends[:-1], np.diff(ends), None if valid.all() else valid)
    if not len(bad):
        return found, None
    shown = ["" if secret else texts[int(row)].as_py().decode("ascii", "backslashreplace") for row in bad]
    return found, Refused(bad, shown)


def text_to_utf8(octets: bytes, conversion: TextConversion | None) -> str | None:
    """Return one text, such as a name, or None if it cannot be converted, or is not UTF-8. Raise ConversionError."""
    if conversion is None or octets.isascii():
        try:
            return octets.decode()
        except UnicodeDecodeError:
            return None
    try:
        text: str | None = conversion.convert(pa.array([octets], pa.binary()))[0].as_py()
    except LevadaError as error:
        raise ConversionError(error) from error
    return text


def with_refused(decoded: Decoded, refused: Refused | None) -> Decoded:
    """Return a decoded column whose refused values include these."""
    if refused is None:
        return decoded
    if decoded.refused is None:
        return Decoded(decoded.array, refused)
    rows = np.concatenate([decoded.refused.rows, refused.rows])
    texts = [*decoded.refused.texts, *refused.texts]
    order = np.argsort(rows, kind="stable")
    return Decoded(decoded.array, Refused(rows[order], [texts[i] for i in order.tolist()]))


def _has_high_bytes(texts: pa.Array) -> Bools:
    """Return a mask of the values with a byte that is not ASCII."""
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    high = np.concatenate([[0], np.cumsum(np.frombuffer(data, np.uint8) >= _HIGH)])
    mask: Bools = high[ends[1:]] > high[ends[:-1]]
    return mask
