"""Encodes the key of each row as numbers, so that keys are compared, sorted and stored as columns.

A key with a single integer column is that integer. Any other key is a 128-bit hash under a secret seed, which is stored
in each table's index. Two keys with the same hash would be treated as one row. So the hash must have a known collision
probability, even if an attacker chooses the keys. Multilinear hashing has one (Lemire and Kaser, "Strongly universal
string hashing is fast"). If the keys are chosen without knowledge of the seed, two keys collide with a probability of
2^-128. Among 10^9 keys the probability of any collision is below 10^-20.

Each row has four sums of 64 bits, modulo 2^64. A value is a list of 64-bit words. Each word has a position in its
column. Both 32-bit halves of a word are multiplied by factors and added to each sum. Each column, position, half and
sum has its own factor. The upper 32 bits of the four sums are the hash. The factors are SHAKE-256 of the seed and the
column's number, so that they are indistinguishable from random numbers without the seed.

The words of a value are as follows. The word at position 0 is 1 for NULL, otherwise 0. The words at the next positions
are all 0 for NULL. An integer, date, time or timestamp is one word, sign-extended, so that a widened column has the
same keys. A boolean is 0 or 1. A float is the bits of its double, with a single zero and a single NaN, as PostgreSQL
compares them. A decimal is the low and the high half of its unscaled value. Text and bytes are the length in bytes,
followed by the bytes in little-endian order, eight per word, padded with zero bytes. A list is its length, followed by
both halves of each element's hash. An element is hashed like a key of one column, under its own seed. Different keys
have different words, and a missing word counts as zero.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from levada.errors import NeedsOperator
from levada.schema import ReplicatedTableSchema
from levada.schema.types import INTEGERS

Indices = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Words = npt.NDArray[np.uint64]

# The number of rows per block. Its arrays fit into the processor's cache for all passes over a word.
_BLOCK: Final = 8_192

_SUMS: Final = 4
_HALF: Final = np.uint64(32)
_LOWER: Final = np.uint64(0xFFFFFFFF)
_UPPER: Final = np.uint64(0xFFFFFFFF00000000)
_TAILS: Final = np.array([(1 << 64) - 1, *((1 << 8 * n) - 1 for n in range(1, 8))], dtype=np.uint64)
"""Masks for the last word of a text, by its length modulo 8."""

SEED_BYTES: Final = 32


def new_seed() -> bytes:
    """Return a new random seed from a cryptographically secure source."""
    return secrets.token_bytes(SEED_BYTES)


class KeyKind(StrEnum):
    """The encoding of a table's keys. The value is stored in the index files."""

    INTEGER = "integer"
    HASH = "hash-2"


@dataclass(frozen=True, slots=True, eq=False)
class Keys:
    """The keys of rows, in the order of the rows.

    ``high`` is int64 for INTEGER, and uint64 for HASH. ``low`` is None for INTEGER.
    """

    kind: KeyKind
    high: npt.NDArray[Any]
    low: Words | None = None

    @classmethod
    def empty(cls, kind: KeyKind) -> Keys:
        """Return an empty sequence of keys."""
        if kind is KeyKind.INTEGER:
            return cls(kind, np.empty(0, np.int64))
        return cls(kind, np.empty(0, np.uint64), np.empty(0, np.uint64))

    @classmethod
    def concat(cls, parts: Sequence[Keys]) -> Keys:
        """Concatenate the keys. ``parts`` must not be empty, and all parts must have the same kind."""
        high = np.concatenate([p.high for p in parts])
        lows = [p.low for p in parts if p.low is not None]
        return cls(parts[0].kind, high, np.concatenate(lows) if lows else None)

    @classmethod
    def interleave(cls, first: Keys, second: Keys) -> Keys:
        """Return the first key of both, then the second key of both, and so on. Both must have the same length."""
        high = np.column_stack((first.high, second.high)).ravel()
        if first.low is None or second.low is None:
            return cls(first.kind, high)
        return cls(first.kind, high, np.column_stack((first.low, second.low)).ravel())

    def __len__(self) -> int:
        return len(self.high)

    @property
    def nbytes(self) -> int:
        """The size in memory in bytes."""
        return int(self.high.nbytes + (0 if self.low is None else self.low.nbytes))

    def take(self, rows: Indices | Mask | slice) -> Keys:
        """Return the keys at these rows."""
        return Keys(self.kind, self.high[rows], None if self.low is None else self.low[rows])

    def replace(self, rows: Indices, others: Keys) -> Keys:
        """Return a copy of the keys with ``others`` at the indices ``rows``."""
        high = self.high.copy()
        high[rows] = others.high
        if self.low is None or others.low is None:
            return Keys(self.kind, high)
        low = self.low.copy()
        low[rows] = others.low
        return Keys(self.kind, high, low)

    def equal(self, other: Keys) -> Mask:
        """Return a mask of the rows in which the keys are equal. Both must have the same length."""
        same: Mask = self.high == other.high
        if self.low is not None:
            same &= self.low == other.low
        return same

    def without(self, others: Keys) -> Keys:
        """Return the keys that are not in ``others``, in any order. Both have distinct keys of the same kind."""
        if not len(others):
            return self
        both = Keys.concat([self, others])
        order = both.order()
        starts = both.take(order).starts()
        alone = order[starts & np.append(starts[1:], True)]
        return self.take(alone[alone < len(self)])

    def find(self, others: Keys) -> Indices:
        """Return the indices of the keys that are in ``others``, in any order. Both have distinct keys of a kind."""
        both = Keys.concat([self, others])
        order = both.order(stable=True)
        starts = both.take(order).starts()
        found: Indices = order[starts & ~np.append(starts[1:], True)]
        return found

    def order(self, *, stable: bool = False) -> Indices:
        """Return the row indices sorted by key. If ``stable``, rows with equal keys keep their order."""
        order = np.argsort(self.high, kind="stable" if stable else "quicksort")
        if self.low is None:
            return order
        high, low = self.high[order], self.low[order]
        # Different keys with equal high halves are very rare, so only then sort by both halves.
        if bool(((high[1:] == high[:-1]) & (low[1:] != low[:-1])).any()):
            return np.lexsort((self.low, self.high))
        return order

    def starts(self) -> Mask:
        """Return a mask of the rows whose key differs from the key of the previous row. The keys must be sorted."""
        starts = np.ones(len(self), np.bool_)
        if len(self):
            np.logical_not(self.take(slice(1, None)).equal(self.take(slice(None, -1))), out=starts[1:])
        return starts

    def last(self) -> Indices:
        """Return the index of the last row of each distinct key, in key order."""
        if not len(self):
            return np.empty(0, np.int64)
        order = self.order()
        first = np.flatnonzero(self.take(order).starts())
        # The order need not be stable, because the last row of a group has the largest index.
        return np.maximum.reduceat(order, first) if len(first) < len(order) else order


def key_kind(schema: ReplicatedTableSchema) -> KeyKind:
    """Return the encoding of the table's keys. Raise ValueError for a table without a key."""
    if not schema.key:
        raise ValueError(f"{schema.name} has no key")
    columns = schema.key_columns
    return KeyKind.INTEGER if len(columns) == 1 and columns[0].type.kind in INTEGERS else KeyKind.HASH


class KeyEncoder:
    """Encodes the key columns of rows as `Keys`. Raises ValueError for a table without a key.

    Only keys under the same ``seed`` can be compared.
    """

    def __init__(self, schema: ReplicatedTableSchema, seed: bytes) -> None:
        self.kind = key_kind(schema)
        self._table = schema.name
        self._columns = schema.key_columns
        self._factors = _Factors(seed)

    @property
    def names(self) -> tuple[str, ...]:
        """The key columns' names, in key order."""
        return tuple(c.name for c in self._columns)

    def encode(self, rows: pa.Table | pa.RecordBatch) -> Keys:
        """Return the keys of rows, which have the key columns under their names. Other columns are ignored."""
        return self.encode_columns([rows.column(name) for name in self.names])

    def encode_columns(self, columns: Sequence[pa.Array | pa.ChunkedArray]) -> Keys:
        """Return the keys of rows. ``columns`` are the key columns in key order.

        Columns of another Arrow type with the same values, such as large strings, dictionaries or narrower integers,
        are cast. Raise NeedsOperator ``null_key`` if a key of a single integer column is NULL. PostgreSQL does not
        allow that in a primary key.
        """
        if self.kind is KeyKind.INTEGER:
            return Keys(self.kind, self._integers(columns[0]))
        typed = [
            a if a.type == c.type.arrow else a.cast(c.type.arrow) for a, c in zip(columns, self._columns, strict=True)
        ]
        return _hash(pa.Table.from_arrays(typed, names=[str(i) for i in range(len(typed))]), self._factors)

    def _integers(self, column: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.int64]:
        if column.null_count:
            raise NeedsOperator(
                "null_key",
                f"a row of {self._table} has NULL in its key column {self.names[0]}",
                hint="give the table a key without NULL",
            )
        values: npt.NDArray[np.int64] = column.cast(pa.int64()).to_numpy()
        return values


class _Factors:
    """The factors of one seed, computed on demand."""

    def __init__(self, seed: bytes) -> None:
        self._seed = seed
        self._columns: dict[int, Words] = {}

    def at(self, column: int, position: int) -> Words:
        """Return the factors of a word: for its lower and for its upper half, one factor for each sum."""
        known = self._columns.get(column)
        if known is None or position >= len(known):
            count = max(8, 2 * position)
            drawn = hashlib.shake_256(self._seed + b"column %d" % column).digest(count * 2 * _SUMS * 8)
            # SHAKE-256 is extendable: a longer digest begins with the shorter one, so known factors stay the same.
            known = self._columns[column] = np.frombuffer(drawn, "<u8").reshape(count, 2, _SUMS, 1)
        factors: Words = known[position]
        return factors

    def of_elements(self, column: int) -> _Factors:
        """Return the factors for the elements of lists in a column."""
        return _Factors(hashlib.shake_256(self._seed + b"elements %d" % column).digest(SEED_BYTES))


def _hash(columns: pa.Table, factors: _Factors) -> Keys:
    high = np.empty(columns.num_rows, np.uint64)
    low = np.empty(columns.num_rows, np.uint64)
    at = 0
    for batch in columns.to_batches(max_chunksize=_BLOCK):
        end = at + batch.num_rows
        if end > at:
            sums = _sums(batch.columns, batch.num_rows, factors)
            high[at:end] = (sums[0] & _UPPER) | (sums[1] >> _HALF)
            low[at:end] = (sums[2] & _UPPER) | (sums[3] >> _HALF)
        at = end
    return Keys(KeyKind.HASH, high, low)


def _sums(columns: Sequence[pa.Array], rows: int, factors: _Factors) -> Words:
    sums = np.zeros((_SUMS, rows), np.uint64)
    for number, column in enumerate(columns):
        valid = _valid(column)
        if valid is not None:
            _add(sums, (~valid).astype(np.uint64), factors.at(number, 0))
        if pa.types.is_list(column.type):
            _add_lists(sums, number, column, valid, factors)
        elif pa.types.is_string(column.type) or pa.types.is_binary(column.type):
            _add_texts(sums, number, column, valid, factors)
        else:
            for position, words in enumerate(_fixed_words(column), 1):
                present = words if valid is None else np.where(valid, words, np.uint64(0))
                _add(sums, present, factors.at(number, position))
    return sums


def _add(sums: Words, words: Words, factors: Words) -> None:
    sums += (words & _LOWER) * factors[0]
    upper = words >> _HALF
    if upper.any():
        sums += upper * factors[1]


def _valid(column: pa.Array) -> Mask | None:
    """Return a mask of the rows with a value, or None if there is no NULL."""
    if not column.null_count:
        return None
    valid: Mask = column.is_valid().to_numpy(zero_copy_only=False)
    return valid


def _fixed_words(column: pa.Array) -> tuple[Words, ...]:
    """Return the words of fixed-width values, one array for each position. The words of a NULL are arbitrary."""
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
    """Return the start and end of the column's values, and the offset from that start and the length of each row."""
    offsets = np.frombuffer(column.buffers()[1], "<i4")[column.offset : column.offset + len(column) + 1].astype(
        np.int64
    )
    lengths = np.diff(offsets)
    if valid is not None:
        lengths[~valid] = 0
    return int(offsets[0]), int(offsets[-1]), offsets[:-1] - offsets[0], lengths


def _add_texts(sums: Words, number: int, column: pa.Array, valid: Mask | None, factors: _Factors) -> None:
    begin, end, first, lengths = _runs(column, valid)
    # Seven bytes of padding, so that an 8-byte word can be read at each byte.
    data = np.zeros(end - begin + 8, np.uint8)
    if end > begin:
        data[: end - begin] = np.frombuffer(column.buffers()[2], np.uint8)[begin:end]
    words = np.ndarray((end - begin + 1,), "<u8", data, strides=(1,))
    _add(sums, lengths.view(np.uint64), factors.at(number, 1))
    _add_runs(sums, number, words, first, (lengths + 7) >> 3, factors, stride=8, tail=_TAILS[lengths & 7])


def _add_lists(sums: Words, number: int, column: pa.ListArray, valid: Mask | None, factors: _Factors) -> None:
    begin, end, first, lengths = _runs(column, valid)
    inner = pa.table({"element": column.values.slice(begin, end - begin)})
    elements = _hash(inner, factors.of_elements(number))
    assert elements.low is not None
    words = np.column_stack((elements.high, elements.low)).ravel()
    _add(sums, lengths.view(np.uint64), factors.at(number, 1))
    _add_runs(sums, number, words, first * 2, lengths * 2, factors, stride=1, tail=None)


def _add_runs(
    sums: Words,
    number: int,
    words: Words,
    first: Indices,
    count: Indices,
    factors: _Factors,
    *,
    stride: int,
    tail: Words | None,
) -> None:
    """Add ``count`` words of each row, beginning at ``first``, with a distance of ``stride``.

    ``tail`` masks the last word of each row.
    """
    rows: Indices | None = None
    lanes = sums
    for k in range(int(count.max(initial=0))):
        more = count > k
        if not more.all():
            if rows is not None:
                sums[:, rows] = lanes
            rows = np.flatnonzero(more) if rows is None else rows[more]
            first, count, lanes = first[more], count[more], sums[:, rows]
            tail = None if tail is None else tail[more]
        word = words[first + k * stride]
        if tail is not None:
            last = count == k + 1
            word[last] &= tail[last]
        _add(lanes, word, factors.at(number, k + 2))
    if rows is not None:
        sums[:, rows] = lanes
