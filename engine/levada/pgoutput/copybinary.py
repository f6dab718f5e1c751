"""Binary COPY, decoded to Arrow columns, for the initial copy (PostgreSQL manual, COPY, "Binary Format")."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from levada.errors import DecodeError
from levada.pgoutput.binary import binary_decoder
from levada.pgoutput.encoding import UnconvertibleTexts, has_text
from levada.pgoutput.masking import decode_masked
from levada.pgoutput.rows import unrepresentable_map
from levada.pgoutput.text import decode_text
from levada.pgoutput.wire import PADDING, Ints, Refused, RowError, Values, WireBuffer
from levada.schema import Column, ReplicatedTableSchema
from levada.schema.changes import UNREPRESENTABLE, UNREPRESENTABLE_TYPE
from levada.schema.masking import is_null_mask
from levada.schema.masks import NO_KEYS, Mask, MaskKeys
from levada.values import MaskMethod, quote_identifier

SIGNATURE: Final = b"PGCOPY\n\xff\r\n\0"
TRAILER: Final = b"\xff\xff"
_FLAGS: Final = len(SIGNATURE)
_HAS_OIDS: Final = 1 << 16
_NULL: Final = 0xFFFFFFFF
_SENT_AS_TEXT: Final = frozenset({19, 25, 1042, 1043})
"""name, text, bpchar and varchar: their binary format is their text, so the server need not call a function."""
_PLAIN_TEXT: Final = frozenset({19, 25, 1043})
"""name, text and varchar: a cast to text keeps their text."""


def select_list(schema: ReplicatedTableSchema, unconvertible: UnconvertibleTexts | None = None) -> str:
    """Return the SELECT list of a copy that `CopyDecoder` decodes: the schema's columns in order.

    The server does not send what a mask removes, if it knows that. The decoder masks all values in any case. A value
    outside of the key with one of the ``unconvertible`` texts is NULL.
    """
    values = []
    for column in schema.columns:
        value = _expression(column)
        if unconvertible is not None and column.attnum not in schema.key and may_be_unconvertible(column):
            value = unconvertible.without(text_expression(column), value)
        values.append(value)
    return ", ".join(values)


def may_be_unconvertible(column: Column) -> bool:
    """Return True for a column whose values are sent, and may have other characters than those of ASCII."""
    return not is_null_mask(column) and (column.mask is not None or has_text(column.type))


def _expression(column: Column) -> str:
    name = quote_identifier(column.name)
    if column.mask is not None:
        return _masked(name, column.mask.mask)
    if binary_decoder(column.type) is not None or column.type_oid in _SENT_AS_TEXT:
        return name
    return _output(name)


def _masked(name: str, mask: Mask) -> str:
    match mask.method:
        case MaskMethod.NULL:
            return "NULL::text"
        case MaskMethod.HMAC:
            # The key must not be in a statement, which the server may log.
            return _output(name)
        case MaskMethod.TRUNCATE:
            return _shortened(f"left({_output(name)}, {mask.length})", name)
        case MaskMethod.LAST:
            return _shortened(f"right({_output(name)}, {mask.length})", name)


def _shortened(text: str, name: str) -> str:
    # With another encoding of the database, a character of the server may be several, or a part of one.
    return f"CASE WHEN (SELECT pg_catalog.getdatabaseencoding() = 'UTF8') THEN {text} ELSE {_output(name)} END"


def text_expression(column: Column) -> str:
    """Return the SQL expression of a column's values as the text that the stream has."""
    name = quote_identifier(column.name)
    return name if column.type_oid in _PLAIN_TEXT else _output(name)


def _output(name: str) -> str:
    # concat calls the type's own output function, as the stream does. A cast may differ: inet::text adds
    # a netmask, bpchar::text loses the padding. A composite of NULLs "is null", but is not distinct from NULL.
    return f"CASE WHEN {name} IS DISTINCT FROM NULL THEN concat({name}) END"


class CopyDecoder:
    """The decoder of a binary COPY of the schema's `select_list`."""

    def __init__(self, schema: ReplicatedTableSchema, keys: MaskKeys = NO_KEYS) -> None:
        self._schema = schema
        self._keys = keys
        self._decoders = [binary_decoder(c.type) or decode_text for c in schema.columns]
        self._layout = schema.arrow
        self._rows = 0

    def decode(self, data: bytearray, sizes: Sequence[int]) -> pa.RecordBatch:
        """Decode CopyData payloads, one per row as PostgreSQL sends them, with or without the header and the trailer.

        ``data`` has the concatenated payloads, and ``sizes`` their lengths. ``data`` must not be used afterwards. The
        batch has the schema's columns, and `UNREPRESENTABLE` if a column cannot hold a value. Raise DecodeError, which
        names the row, counted from 0 over all calls.
        """
        size = np.array(sizes, np.int64)
        end = np.cumsum(size)
        start, end = self._without_frame(data, end - size, end)
        data += PADDING
        buffer = WireBuffer(data)
        try:
            batch = self._decode(buffer, start, end)
        except RowError as error:
            raise DecodeError(
                "malformed_copy", f"row {self._rows + error.row} of the copy of {self._schema.name}: {error.what}"
            ) from None
        self._rows += batch.num_rows
        return batch

    def _without_frame(self, data: bytearray, start: Ints, end: Ints) -> tuple[Ints, Ints]:
        """Return the positions of the rows without the header, which may share the first payload, and the trailer."""
        if len(start) and not self._rows and data.startswith(SIGNATURE):
            start[0] += self._header_size(data, int(end[0]))
            if start[0] == end[0]:
                start, end = start[1:], end[1:]
        if len(start) and data.endswith(TRAILER) and end[-1] - start[-1] == len(TRAILER):
            start, end = start[:-1], end[:-1]
        return start, end

    def _header_size(self, data: bytearray, available: int) -> int:
        size = _FLAGS + 8
        flags, extension = (int.from_bytes(data[at : at + 4], "big") for at in (_FLAGS, _FLAGS + 4))
        if flags & _HAS_OIDS or size + extension > available:
            raise DecodeError("malformed_copy", f"the header of the copy of {self._schema.name} is malformed")
        return size + extension

    def _decode(self, buffer: WireBuffer, start: Ints, end: Ints) -> pa.RecordBatch:
        if (short := end - start < 2).any():
            raise RowError(int(short.argmax()), "it is truncated")
        if (strange := buffer.int2(start) != len(self._decoders)).any():
            raise RowError(int(strange.argmax()), "its number of columns is not the table's")
        at = start + 2
        arrays: list[pa.Array] = []
        refused: list[tuple[int, Refused]] = []
        for column, decode in zip(self._schema.columns, self._decoders, strict=True):
            values = _field(buffer, at, end)
            at = values.start + values.length
            try:
                masked = column.mask is not None
                decoded = decode_masked(values, column, self._keys) if masked else decode(values, column.type)
            except RowError as error:
                raise RowError(error.row, f"column {column.name}: {error.what}") from None
            arrays.append(decoded.array)
            if decoded.refused is not None:
                refused.append((column.attnum, decoded.refused))
        if (trailing := at != end).any():
            raise RowError(int(trailing.argmax()), "excess bytes after its last column")
        layout = self._layout
        if refused:
            arrays.append(unrepresentable_map(len(start), refused))
            layout = layout.append(pa.field(UNREPRESENTABLE, UNREPRESENTABLE_TYPE))
        return pa.RecordBatch.from_arrays(arrays, schema=layout)


def _field(buffer: WireBuffer, at: Ints, end: Ints) -> Values:
    fields = buffer.fields(at)
    length = fields.length()
    start = at + 4
    valid = length != _NULL
    values = Values(buffer, start, length, None, fields)
    if not valid.all():
        values = Values(buffer, start, np.where(valid, length, 0), valid, fields)
    if (beyond := start + values.length > end).any():
        raise RowError(int(beyond.argmax()), "a value that exceeds it")
    return values
