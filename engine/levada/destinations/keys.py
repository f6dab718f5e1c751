"""The key of a row as numbers, so that keys are compared, sorted and stored by whole columns.

A key of one integer column is that integer. Any other is a hash of 128 bits: with 10^9 keys the chance that any two are
alike is below 10^-20 (it is no cryptographic hash: who chooses keys at will can make two that collide).

The hash is kept on disk, so it never changes under one name (`KeyKind`); another algorithm is another kind. For each
row there are two lanes of 64 bits, ``a`` and ``b``; all arithmetic is modulo 2**64::

    column i adds its words w, each mixed with the column's position first:
        m = (w + (i + 1) * GOLDEN) * M1;  m ^= m >> 32;  m *= M2;  m ^= m >> 29
        a = (a ^ m) * A;  a ^= a >> 32
        b = (b + m) * B;  b ^= b >> 29
    at the end a += b; b += a; a = finish(a); b = finish(b); a += b; b += a, where finish is MurmurHash3's fmix64

The words of a value, little-endian: an integer, date, time or timestamp is one word, sign extended (so a widened column
keeps its keys); a boolean is 0 or 1; a float is its double's bits, with one zero and one NaN, as PostgreSQL compares
them; a decimal is the low and the high half of its unscaled value; text and bytes are the length in bytes and then
the bytes, eight a word, the last filled with zero bytes; a list is its length and then both halves of each element's
hash, as if the element were a key of one column. NULL is the word 0, and then ``a ^= NULL_A; b ^= NULL_B``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from levada.errors import NeedsOperator
from levada.schema import Kind, ReplicatedTableSchema

Indices = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Words = npt.NDArray[np.uint64]

_INTEGERS: Final = {Kind.INT2, Kind.INT4, Kind.INT8, Kind.OID}

# A block's arrays stay in the processor's cache over the some fifteen passes that a word takes.
_BLOCK: Final = 16_384

_MODULUS: Final = 1 << 64
_GOLDEN: Final = 0x9E3779B97F4A7C15
_M1: Final = np.uint64(0xBF58476D1CE4E5B9)
_M2: Final = np.uint64(0x94D049BB133111EB)
_A: Final = np.uint64(0x87C37B91114253D5)
_B: Final = np.uint64(0x4CF5AD432745937F)
_SEED_A: Final = np.uint64(0x243F6A8885A308D3)
_SEED_B: Final = np.uint64(0x13198A2E03707344)
_NULL_A: Final = np.uint64(0xA4093822299F31D0)
_NULL_B: Final = np.uint64(0x082EFA98EC4E6C89)
_FINISH_1: Final = np.uint64(0xFF51AFD7ED558CCD)
_FINISH_2: Final = np.uint64(0xC4CEB9FE1A85EC53)
_TAILS: Final = np.array([_MODULUS - 1, *((1 << 8 * n) - 1 for n in range(1, 8))], dtype=np.uint64)
"""What to keep of the last word of a text, by the remainder of its length by 8."""


class KeyKind(StrEnum):
    """What the numbers of a key are; the value is kept on disk."""

    INTEGER = "integer"
    HASH = "hash-1"


@dataclass(frozen=True, slots=True, eq=False)
class Keys:
    """Keys of rows, in the rows' order: ``high`` is int64 for INTEGER, uint64 for HASH; only HASH has ``low``."""

    kind: KeyKind
    high: npt.NDArray[Any]
    low: Words | None = None

    @classmethod
    def empty(cls, kind: KeyKind) -> Keys:
        """Return no keys."""
        if kind is KeyKind.INTEGER:
            return cls(kind, np.empty(0, np.int64))
        return cls(kind, np.empty(0, np.uint64), np.empty(0, np.uint64))

    @classmethod
    def concat(cls, parts: Sequence[Keys]) -> Keys:
        """Return the keys of all parts, one after another; ``parts`` has at least one, all of one kind."""
        high = np.concatenate([p.high for p in parts])
        lows = [p.low for p in parts if p.low is not None]
        return cls(parts[0].kind, high, np.concatenate(lows) if lows else None)

    @classmethod
    def interleave(cls, first: Keys, second: Keys) -> Keys:
        """Return the first key of each, then the second of each, and so on; both have the same length."""
        high = np.column_stack((first.high, second.high)).ravel()
        if first.low is None or second.low is None:
            return cls(first.kind, high)
        return cls(first.kind, high, np.column_stack((first.low, second.low)).ravel())

    def __len__(self) -> int:
        return len(self.high)

    def take(self, rows: Indices | Mask | slice) -> Keys:
        """Return the keys at these rows."""
        return Keys(self.kind, self.high[rows], None if self.low is None else self.low[rows])

    def replace(self, rows: Indices, others: Keys) -> Keys:
        """Return these keys, but ``others`` at ``rows``."""
        high = self.high.copy()
        high[rows] = others.high
        if self.low is None or others.low is None:
            return Keys(self.kind, high)
        low = self.low.copy()
        low[rows] = others.low
        return Keys(self.kind, high, low)

    def equal(self, other: Keys) -> Mask:
        """Tell row by row whether the keys are equal; both have the same length."""
        same: Mask = self.high == other.high
        if self.low is not None:
            same &= self.low == other.low
        return same

    def order(self, *, stable: bool = False) -> Indices:
        """Return the rows sorted by key; equal keys in the rows' order only if ``stable``."""
        order = np.argsort(self.high, kind="stable" if stable else "quicksort")
        if self.low is None:
            return order
        high, low = self.high[order], self.low[order]
        # Equal halves of different keys are so rare that sorting by both is left to that case.
        if bool(((high[1:] == high[:-1]) & (low[1:] != low[:-1])).any()):
            return np.lexsort((self.low, self.high))
        return order

    def starts(self) -> Mask:
        """Tell for each row whether its key differs from the row's before; for sorted keys."""
        starts = np.ones(len(self), np.bool_)
        if len(self):
            np.logical_not(self.take(slice(1, None)).equal(self.take(slice(None, -1))), out=starts[1:])
        return starts

    def last(self) -> Indices:
        """Return the last row of each key, in the order of the keys."""
        if not len(self):
            return np.empty(0, np.int64)
        order = self.order()
        first = np.flatnonzero(self.take(order).starts())
        # The order need not be stable: the last row of a group is its largest.
        return np.maximum.reduceat(order, first) if len(first) < len(order) else order


class KeyEncoder:
    """Turns the key columns of rows into `Keys`; raises ValueError for a table without a key."""

    def __init__(self, schema: ReplicatedTableSchema) -> None:
        if not schema.key:
            raise ValueError(f"{schema.name} has no key")
        self._table = schema.name
        self._columns = schema.key_columns
        single = len(self._columns) == 1 and self._columns[0].type.kind in _INTEGERS
        self.kind = KeyKind.INTEGER if single else KeyKind.HASH

    @property
    def names(self) -> tuple[str, ...]:
        """The key columns' names, in key order."""
        return tuple(c.name for c in self._columns)

    def encode(self, rows: pa.Table | pa.RecordBatch) -> Keys:
        """Return the keys of rows that have the key columns under their names, among others perhaps."""
        return self.encode_columns([rows.column(name) for name in self.names])

    def encode_columns(self, columns: Sequence[pa.Array | pa.ChunkedArray]) -> Keys:
        """Return the keys of rows given as their key columns, in key order.

        Columns of another Arrow type that holds the same values (large strings, dictionaries, narrower integers) are
        cast. Raise NeedsOperator (``null_key``) for NULL as the only integer of a key, which a source cannot have.
        """
        if self.kind is KeyKind.INTEGER:
            return Keys(self.kind, self._integers(columns[0]))
        typed = [
            a if a.type == c.type.arrow else a.cast(c.type.arrow) for a, c in zip(columns, self._columns, strict=True)
        ]
        return _hash(pa.Table.from_arrays(typed, names=[str(i) for i in range(len(typed))]))

    def _integers(self, column: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.int64]:
        if column.null_count:
            raise NeedsOperator("null_key", f"a row of {self._table} has NULL as its key {self.names[0]}")
        values: npt.NDArray[np.int64] = column.cast(pa.int64()).to_numpy()
        return values


def _hash(columns: pa.Table) -> Keys:
    high = np.empty(columns.num_rows, np.uint64)
    low = np.empty(columns.num_rows, np.uint64)
    at = 0
    for batch in columns.to_batches(max_chunksize=_BLOCK):
        end = at + batch.num_rows
        if end > at:
            _hash_block(batch.columns, high[at:end], low[at:end])
        at = end
    return Keys(KeyKind.HASH, high, low)


def _hash_block(columns: Sequence[pa.Array], a: Words, b: Words) -> None:
    a.fill(_SEED_A)
    b.fill(_SEED_B)
    for position, column in enumerate(columns):
        salt = np.uint64((position + 1) * _GOLDEN % _MODULUS)
        valid = _valid(column)
        if pa.types.is_list(column.type):
            _absorb_lists(a, b, salt, column, valid)
        elif pa.types.is_string(column.type) or pa.types.is_binary(column.type):
            _absorb_texts(a, b, salt, column, valid)
        else:
            for words in _fixed_words(column):
                _absorb(a, b, salt, words if valid is None else np.where(valid, words, np.uint64(0)))
        if valid is not None:
            null = ~valid
            a[null] ^= _NULL_A
            b[null] ^= _NULL_B
    a += b
    b += a
    _finish(a)
    _finish(b)
    a += b
    b += a


def _finish(lane: Words) -> None:
    lane ^= lane >> np.uint64(33)
    lane *= _FINISH_1
    lane ^= lane >> np.uint64(33)
    lane *= _FINISH_2
    lane ^= lane >> np.uint64(33)


def _absorb(a: Words, b: Words, salt: np.uint64, words: Words) -> None:
    m = words + salt
    m *= _M1
    m ^= m >> np.uint64(32)
    m *= _M2
    m ^= m >> np.uint64(29)
    a ^= m
    a *= _A
    a ^= a >> np.uint64(32)
    b += m
    b *= _B
    b ^= b >> np.uint64(29)


def _valid(column: pa.Array) -> Mask | None:
    """Return where the column has values, None if everywhere."""
    if not column.null_count:
        return None
    valid: Mask = column.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _fixed_words(column: pa.Array) -> tuple[Words, ...]:
    """Return the words of values of one width; of a NULL any word."""
    kind = column.type
    if pa.types.is_decimal128(kind):
        halves = _values(column, "<u8", width=2)
        return halves[0::2], halves[1::2]
    if pa.types.is_floating(kind):
        doubles = _values(column, "<f4" if pa.types.is_float32(kind) else "<f8").astype(np.float64)
        doubles += 0.0  # -0.0 + 0.0 is 0.0
        doubles[np.isnan(doubles)] = np.nan
        return (doubles.view(np.uint64),)
    if pa.types.is_boolean(kind):
        return (_values(column.cast(pa.uint8()), "u1").astype(np.uint64),)
    return (_values(column, f"<i{kind.bit_width // 8}").astype(np.int64).view(np.uint64),)


def _values(column: pa.Array, dtype: str, width: int = 1) -> npt.NDArray[Any]:
    values = np.frombuffer(column.buffers()[1] or b"", dtype)
    return values[column.offset * width : (column.offset + len(column)) * width]


def _runs(column: pa.Array, valid: Mask | None) -> tuple[int, int, Indices, Indices]:
    """Return where the column's values begin and end, and of each row its first value from there on and its length."""
    offsets = np.frombuffer(column.buffers()[1], "<i4")[column.offset : column.offset + len(column) + 1].astype(
        np.int64
    )
    lengths = np.diff(offsets)
    if valid is not None:
        lengths[~valid] = 0
    return int(offsets[0]), int(offsets[-1]), offsets[:-1] - offsets[0], lengths


def _absorb_texts(a: Words, b: Words, salt: np.uint64, column: pa.Array, valid: Mask | None) -> None:
    begin, end, first, lengths = _runs(column, valid)
    # Seven bytes more, so that a word can be read at every byte.
    data = np.zeros(end - begin + 8, np.uint8)
    if end > begin:
        data[: end - begin] = np.frombuffer(column.buffers()[2], np.uint8)[begin:end]
    words = np.ndarray((end - begin + 1,), "<u8", data, strides=(1,))
    _absorb(a, b, salt, lengths.view(np.uint64))
    _absorb_runs(a, b, salt, words, first, (lengths + 7) >> 3, stride=8, tail=_TAILS[lengths & 7])


def _absorb_lists(a: Words, b: Words, salt: np.uint64, column: pa.ListArray, valid: Mask | None) -> None:
    begin, end, first, lengths = _runs(column, valid)
    elements = _hash(pa.table({"element": column.values.slice(begin, end - begin)}))
    assert elements.low is not None
    words = np.column_stack((elements.high, elements.low)).ravel()
    _absorb(a, b, salt, lengths.view(np.uint64))
    _absorb_runs(a, b, salt, words, first * 2, lengths * 2, stride=1, tail=None)


def _absorb_runs(
    a: Words,
    b: Words,
    salt: np.uint64,
    words: Words,
    first: Indices,
    count: Indices,
    *,
    stride: int,
    tail: Words | None,
) -> None:
    """Absorb of each row ``count`` words, at ``first`` and every ``stride`` on; ``tail`` masks the last of them."""
    rows: Indices | None = None
    lane_a, lane_b = a, b
    for k in range(int(count.max(initial=0))):
        more = count > k
        if not more.all():
            if rows is not None:
                a[rows], b[rows] = lane_a, lane_b
            rows = np.flatnonzero(more) if rows is None else rows[more]
            first, count, lane_a, lane_b = first[more], count[more], a[rows], b[rows]
            tail = None if tail is None else tail[more]
        word = words[first + k * stride]
        if tail is not None:
            last = count == k + 1
            word[last] &= tail[last]
        _absorb(lane_a, lane_b, salt, word)
    if rows is not None:
        a[rows], b[rows] = lane_a, lane_b
