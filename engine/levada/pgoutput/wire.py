"""One buffer of received bytes, and whole columns of values that are read from it.

Positions and lengths are ascending int64 arrays with one element per row. `RowError` has the index of a row. Callers
that know the row's LSN turn it into a `DecodeError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

Ints: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
Bools: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"
Bytes: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"

PADDING: Final = bytes(32)
"""Bytes after the data, so that a `Fields` can be read at any position of the data and right after it."""

_FIELD: Final = 16
_INLINE: Final = 12
"""The length up to which Arrow keeps a string inside of its view (Arrow columnar format, "Variable-size Binary View").
"""

MAX_BUFFER: Final = 1 << 30
"""The size in bytes above which a slice is decoded in parts, because Arrow's offsets have 32 bits."""


class RowError(Exception):
    """A row (an index into the current arrays) that violates the protocol."""

    def __init__(self, row: int, what: str) -> None:
        super().__init__(what)
        self.row = row
        self.what = what


def sizes_of(parts: Sequence[bytes]) -> Ints:
    """Return the length of each part."""
    return np.fromiter(map(len, parts), np.int64, len(parts))


class WireBuffer:
    """Received bytes with `PADDING`, and big-endian integers at any position of them."""

    __slots__ = ("_views", "arrow", "bytes")

    def __init__(self, data: bytes | bytearray | pa.Buffer) -> None:
        """Wrap ``data``, which must end with `PADDING`, and must not change any more."""
        self.arrow: pa.Buffer = pa.py_buffer(data)
        self.bytes: Bytes = np.frombuffer(self.arrow, np.uint8)
        self._views: dict[str, np.ndarray[Any, Any]] = {}

    @classmethod
    def join(cls, parts: Sequence[bytes], sizes: Ints) -> tuple[WireBuffer, Ints, Ints]:
        """Concatenate ``parts`` of these ``sizes``. Return the buffer, and the start and exclusive end of each part."""
        ends = np.cumsum(sizes)
        return cls(b"".join([*parts, PADDING])), ends - sizes, ends

    def view(self, dtype: str) -> np.ndarray[Any, Any]:
        """Return overlapping values of ``dtype``, one for each byte position at which one fits."""
        found = self._views.get(dtype)
        if found is None:
            size = len(self.bytes) - np.dtype(dtype).itemsize + 1
            found = self._views[dtype] = np.ndarray((size,), dtype, buffer=self.arrow, strides=(1,))
        return found

    def int2(self, at: Ints) -> Ints:
        """Read signed 16-bit integers."""
        return self.view(">i2")[at].astype(np.int64)

    def uint4(self, at: Ints) -> Ints:
        """Read unsigned 32-bit integers. A negative length is read as one that is too large."""
        return self.view(">u4")[at].astype(np.int64)

    def int8(self, at: Ints) -> Ints:
        """Read signed 64-bit integers."""
        return self.view(">i8")[at].astype(np.int64)

    def fields(self, at: Ints) -> Fields:
        """Read the fields at these positions, each a length in 32 bits and a value."""
        return Fields(self.view(f"V{_FIELD}")[at].view(np.uint8).reshape(len(at), _FIELD))


@dataclass(frozen=True, slots=True)
class Fields:
    """The first 16 bytes of fields: their length and the first 12 bytes of their value.

    To gather them takes as long as to gather 4 bytes, and what a decoder needs of them it reads from contiguous memory.
    """

    bytes: np.ndarray[Any, np.dtype[np.uint8]]

    def length(self) -> Ints:
        """Read the lengths. A negative one, as of NULL in a binary COPY, is read as one that is too large."""
        return self._view(">u4", 0).astype(np.int64)

    def read(self, dtype: str, offset: int) -> np.ndarray[Any, Any]:
        """Read bytes of the values as `Values.read` does."""
        found = self._view(dtype, 4 + offset)
        return found.astype(found.dtype.newbyteorder("="))

    def _view(self, dtype: str, offset: int) -> np.ndarray[Any, Any]:
        return self.bytes[:, offset : offset + np.dtype(dtype).itemsize].view(dtype)[:, 0]


@dataclass(frozen=True, slots=True)
class Values:
    """The positions of the values of one column. Invalid values have length 0. All are valid if ``valid`` is None.

    ``fields`` has the beginnings of the valid values, if they were read. Those of others are arbitrary.
    """

    buffer: WireBuffer
    start: Ints
    length: Ints
    valid: Bools | None = None
    fields: Fields | None = None

    def __len__(self) -> int:
        return len(self.start)

    def where(self, mask: Bools) -> Values:
        """Return the same values, of which only those in ``mask`` stay valid."""
        valid = mask if self.valid is None else self.valid & mask
        return Values(self.buffer, self.start, self.length, valid, self.fields)

    def first_bytes(self) -> Bytes:
        """Return each value's first byte. For empty values and NULL it is arbitrary."""
        return self.buffer.bytes[self.start]

    def read(self, dtype: str, offset: int = 0) -> np.ndarray[Any, Any]:
        """Read the bytes of each value from ``offset`` on as a number, in the machine's byte order.

        They must be among the value's first 12 bytes. For NULL the number is arbitrary.
        """
        if self.fields is not None:
            return self.fields.read(dtype, offset)
        found = self.buffer.view(dtype)[self.start + offset]
        return found.astype(found.dtype.newbyteorder("="))

    def only_valid(self, mask: Bools) -> Bools:
        """Return ``mask`` without the rows that are NULL."""
        return mask if self.valid is None else mask & self.valid

    def refuse(self, mask: Bools) -> Refused | None:
        """Return the texts of the rows in ``mask``, which must be valid, or None if there are none."""
        rows = np.flatnonzero(mask)
        return Refused(rows, self.texts(rows)) if len(rows) else None

    def texts(self, rows: Ints) -> list[str]:
        """Return the values of these rows as Python strings."""
        data = self.buffer.arrow
        out = []
        for row, at, size in zip(rows.tolist(), self.start[rows].tolist(), self.length[rows].tolist(), strict=True):
            try:
                out.append(data.slice(at, size).to_pybytes().decode())
            except UnicodeDecodeError:
                raise RowError(row, "text that is not UTF-8") from None
        return out


@dataclass(frozen=True, slots=True)
class Refused:
    """Values that the column's Arrow type cannot hold: ascending rows, and PostgreSQL's text of each."""

    rows: Ints
    texts: list[str]


@dataclass(frozen=True, slots=True)
class Decoded:
    """A decoded column. It is NULL in the rows of ``refused``."""

    array: pa.Array
    refused: Refused | None = None


def bitmap(bits: Bools) -> pa.Buffer:
    """Pack booleans into an Arrow bitmap."""
    return pa.py_buffer(np.packbits(bits, bitorder="little"))


def fixed(values: np.ndarray[Any, Any], valid: Bools | None, kind: pa.DataType) -> pa.Array:
    """Wrap values that already have Arrow's layout of ``kind``."""
    return pa.Array.from_buffers(
        kind, len(values), [None if valid is None else bitmap(valid), pa.py_buffer(np.ascontiguousarray(values))]
    )


def booleans(values: Bools, valid: Bools | None) -> pa.Array:
    """Wrap booleans as an Arrow column."""
    return pa.Array.from_buffers(pa.bool_(), len(values), [None if valid is None else bitmap(valid), bitmap(values)])


_EVEN: Final = pa.array(np.arange(0, 1 << 16, 2, dtype=np.int32))


def _every_other(count: int) -> pa.Array:
    return _EVEN.slice(0, count) if count <= len(_EVEN) else pa.array(np.arange(0, 2 * count, 2, dtype=np.int32))


def views(values: Values) -> pa.Array:
    """Return the values as text, not validated as UTF-8: as views of the buffer if the fields were read.

    Arrow casts views without a copy of the bytes. The column must not outlive the decoding.
    """
    if values.fields is None:
        return cut(values, pa.string())
    count, length = len(values), values.length
    # A view is a length, and the value itself or else its first 4 bytes, the number of a buffer, and an offset.
    words = values.fields.bytes.view(np.int32).copy()
    words[:, 0] = length
    outside = length > _INLINE
    if outside.all():
        words[:, 2] = 0
        words[:, 3] = values.start
    elif outside.any():
        words[:, 2][outside] = 0
        np.copyto(words[:, 3], values.start, casting="same_kind", where=outside)
    validity = None if values.valid is None else bitmap(values.valid)
    return pa.Array.from_buffers(pa.string_view(), count, [validity, pa.py_buffer(words), values.buffer.arrow])


def cut(values: Values, kind: pa.DataType) -> pa.Array:
    """Copy the values' bytes into a ``pa.string()`` (not validated as UTF-8) or ``pa.binary()`` column.

    Without fields, the buffer is treated as one array whose even elements are the values, and whose odd elements are
    the bytes between them. One ``take`` keeps the even ones.
    """
    count = len(values)
    if not count:
        return pa.array([], kind)
    if values.fields is not None:
        return views(values).cast(kind)
    offsets = np.empty(2 * count + 1, np.int32)
    offsets[0:-1:2] = values.start
    offsets[1::2] = values.start + values.length
    offsets[-1] = offsets[-2]
    pieces = pa.Array.from_buffers(kind, 2 * count, [None, pa.py_buffer(offsets), values.buffer.arrow])
    even = _every_other(count)
    if values.valid is not None:
        even = pa.Array.from_buffers(pa.int32(), count, [bitmap(values.valid), even.buffers()[1]])
    return pieces.take(even)


def strings(values: Values) -> pa.Array:
    """Copy the values as text. Raise `RowError` for text that is not UTF-8."""
    array = cut(values, pa.string())
    if has_high_byte(array):
        try:
            array.validate(full=True)
        except pa.ArrowInvalid:
            present = np.arange(len(values)) if values.valid is None else np.flatnonzero(values.valid)
            values.texts(present)
            raise RowError(0, "text that is not UTF-8") from None
    return array


def has_high_byte(array: pa.Array) -> bool:
    """Return True if a text has a byte that is not ASCII."""
    data = array.buffers()[2]
    if data is None or not data.size:
        return False
    octets = np.frombuffer(data, np.uint8)
    whole = len(octets) // 8 * 8
    words = np.bitwise_or.reduce(octets[:whole].view(np.uint64), initial=0)
    return bool(words & 0x8080808080808080 or (octets[whole:] & 0x80).any())


def overlay(array: pa.Array, rows: Ints, patch: pa.Array) -> pa.Array:
    """Return ``array`` with its ``rows`` replaced by the elements of ``patch``."""
    index = np.arange(len(array), dtype=np.int64)
    index[rows] = len(array) + np.arange(len(rows))
    return pa.concat_arrays([array, patch]).take(pa.array(index))
