"""Masks on decoded columns: the one place where values are masked, in a copy and in the stream.

The mask of a value is made of PostgreSQL's text of it, so that both give the same. A row of a copy has that text by
`levada.pgoutput.copybinary.select_list`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from levada.pgoutput.wire import Decoded, Values, strings
from levada.schema import Column
from levada.schema.masks import Mask, MaskKeys
from levada.schema.types import ColumnType
from levada.values import MaskMethod

_BLOCK: Final = 64
"""The size in bytes of a block of SHA-256."""


def decode_masked(values: Values, column: Column, keys: MaskKeys) -> Decoded:
    """Decode a masked column, whose values are PostgreSQL's text. Raise `RowError` for text that is not UTF-8."""
    assert column.mask is not None
    mask = column.mask.mask
    if mask.method is MaskMethod.NULL:
        return Decoded(nulls(len(values), column.type))
    return Decoded(masked_texts(strings(values), mask, keys))


def nulls(count: int, kind: ColumnType) -> pa.Array:
    """Return the values of a column whose mask is ``Null``."""
    return pa.nulls(count, kind.arrow)


def masked_texts(texts: pa.Array, mask: Mask, keys: MaskKeys) -> pa.Array:
    """Return the masks of texts. NULL stays NULL, whatever the method is. A character is a code point."""
    match mask.method:
        case MaskMethod.NULL:
            return pa.nulls(len(texts), pa.string())
        case MaskMethod.HMAC:
            return _hashed(texts, keys.key(mask.key_id))
        case MaskMethod.TRUNCATE:
            return pc.utf8_slice_codeunits(texts, 0, mask.length)
        case MaskMethod.LAST:
            return pc.utf8_slice_codeunits(texts, -mask.length)


def _hashed(texts: pa.Array, key: bytes) -> pa.Array:
    # Nothing in Arrow or numpy computes a SHA-256. So each distinct text of a batch becomes a Python object for a
    # moment, which is the smaller part of its cost.
    distinct = texts.dictionary_encode()
    return pa.array(list(_digests(distinct.dictionary, key)), pa.string()).take(distinct.indices)


def _digests(texts: pa.Array, key: bytes) -> Iterator[str]:
    """Yield the HMAC-SHA256 of each text (RFC 2104). The key's part of both hashes is computed once."""
    padded = (hashlib.sha256(key).digest() if len(key) > _BLOCK else key).ljust(_BLOCK, b"\0")
    inner, outer = (hashlib.sha256(bytes(b ^ pad for b in padded)) for pad in (0x36, 0x5C))
    if not texts:
        return
    for text in texts.cast(pa.binary()).to_pylist():
        first, last = inner.copy(), outer.copy()
        first.update(text)
        last.update(first.digest())
        yield last.hexdigest()
