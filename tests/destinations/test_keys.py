"""Keys as numbers."""

from __future__ import annotations

import hashlib
import random
import struct
from collections.abc import Sequence
from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from levada.destinations.keys import KeyEncoder, KeyKind, Keys, new_seed
from levada.errors import NeedsOperator
from levada.schema import Column, ColumnType, IdentityKind, Kind, ReplicatedTableSchema
from levada.values import QualifiedTable, TableId

MASK = (1 << 64) - 1
SEED = bytes(range(32))


def keyed(*types: ColumnType | Kind) -> ReplicatedTableSchema:
    """A table whose columns are all in its key."""
    shapes = [ColumnType(t) if isinstance(t, Kind) else t for t in types]
    columns = tuple(Column(i, f"c{i}", t, str(t.kind), 0) for i, t in enumerate(shapes, 1))
    attnums = tuple(c.attnum for c in columns)
    return ReplicatedTableSchema(
        TableId(1), QualifiedTable("public", "t"), columns, IdentityKind.PRIMARY_KEY, attnums, attnums
    )


def encode(schema: ReplicatedTableSchema, *columns: Sequence[Any]) -> Keys:
    """The keys of rows given by their columns' values."""
    arrays = [pa.array(v, f.type) for v, f in zip(columns, schema.arrow, strict=True)]
    return KeyEncoder(schema, SEED).encode(pa.Table.from_arrays(arrays, schema=schema.arrow))


def numbers(keys: Keys) -> list[int]:
    """The keys as Python integers: of a hash all 128 bits."""
    if keys.low is None:
        return [int(k) for k in keys.high]
    return [int(h) << 64 | int(v) for h, v in zip(keys.high, keys.low, strict=True)]


# The algorithm once more, row by row, from its description.


def words(kind: ColumnType, value: Any, elements: bytes) -> list[int]:
    """Return a value's words. ``elements`` is the seed of a list's."""
    match kind.kind:
        case Kind.BOOL | Kind.INT4 | Kind.INT8 | Kind.OID:
            return [int(value) & MASK]
        case Kind.DECIMAL:
            unscaled = int(value.scaleb(kind.scale)) & (1 << 128) - 1
            return [unscaled & MASK, unscaled >> 64]
        case Kind.FLOAT8:
            return [struct.unpack("<Q", struct.pack("<d", float("nan") if value != value else value + 0.0))[0]]
        case Kind.TEXT | Kind.BYTEA:
            data = value.encode() if isinstance(value, str) else value
            padded = data + bytes(-len(data) % 8)
            return [len(data), *struct.unpack(f"<{len(padded) // 8}Q", padded)]
        case Kind.ARRAY:
            assert kind.element is not None
            halves = (divmod(reference([kind.element], [v], elements), 1 << 64) for v in value)
            return [len(value), *(x for pair in halves for x in pair)]
        case Kind.DATE:
            return [(value - date(1970, 1, 1)).days & MASK]
    raise AssertionError(kind)


def reference(types: Sequence[ColumnType], row: Sequence[Any], seed: bytes = SEED) -> int:
    """A row's 128 bits."""
    sums = [0] * 4
    for i, (kind, value) in enumerate(zip(types, row, strict=True)):
        elements = hashlib.shake_256(seed + b"elements %d" % i).digest(32)
        column = [1] if value is None else [0, *words(kind, value, elements)]
        drawn = hashlib.shake_256(seed + b"column %d" % i).digest(len(column) * 64)
        factors = struct.unpack(f"<{len(column) * 8}Q", drawn)
        for position, word in enumerate(column):
            for half, part in enumerate((word & 0xFFFFFFFF, word >> 32)):
                for k in range(4):
                    sums[k] += part * factors[position * 8 + half * 4 + k]
    result = 0
    for total in sums:
        result = result << 32 | (total & MASK) >> 32
    return result


TYPES: dict[ColumnType, st.SearchStrategy[Any]] = {
    ColumnType(Kind.INT4): st.integers(-(2**31), 2**31 - 1),
    ColumnType(Kind.INT8): st.integers(-(2**63), 2**63 - 1),
    ColumnType(Kind.BOOL): st.booleans(),
    ColumnType(Kind.FLOAT8): st.floats(),
    ColumnType(Kind.DECIMAL, 30, 4): st.decimals(-(10**20), 10**20, places=4),
    ColumnType(Kind.TEXT): st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
    ColumnType(Kind.BYTEA): st.binary(max_size=40),
    ColumnType(Kind.DATE): st.dates(),
    ColumnType(Kind.ARRAY, element=ColumnType(Kind.TEXT)): st.lists(st.none() | st.text(max_size=9), max_size=4),
}


@settings(max_examples=150)
@given(st.data())
def test_hash_is_the_described_one(data: st.DataObject) -> None:
    """Every type's hash equals the description's, whatever the slicing and the chunks."""
    types = data.draw(st.lists(st.sampled_from(list(TYPES)), min_size=1, max_size=3))
    types.append(ColumnType(Kind.BOOL))
    rows = data.draw(st.lists(st.tuples(*(st.none() | TYPES[t] for t in types)), min_size=1, max_size=12))
    schema = keyed(*types)
    arrays = [pa.array([row[i] for row in rows], f.type) for i, f in enumerate(schema.arrow)]
    table = pa.Table.from_arrays(arrays, schema=schema.arrow)
    cut = data.draw(st.integers(0, len(rows)))
    start = data.draw(st.integers(0, len(rows)))
    chunked = pa.concat_tables([table.slice(0, cut), table.slice(cut)]).slice(start)
    encoder = KeyEncoder(schema, SEED)
    expected = [reference(types, row) for row in rows]
    assert numbers(encoder.encode(table)) == expected
    assert numbers(encoder.encode(chunked)) == expected[start:]
    for batch in chunked.to_batches():
        assert set(numbers(encoder.encode(batch))) <= set(expected)


# The hash before this one had no seed, and each of its steps can be taken back: its collisions could be computed.

_M1, _M2, _A, _B = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 0x87C37B91114253D5, 0x4CF5AD432745937F
_START = (0x243F6A8885A308D3, 0x13198A2E03707344)
_SALTS = (0x9E3779B97F4A7C15, 2 * 0x9E3779B97F4A7C15 & MASK)


def unkeyed_step(state: tuple[int, int], m: int) -> tuple[int, int]:
    """Both lanes of the former hash after one more mixed word."""
    a, b = (state[0] ^ m) * _A & MASK, (state[1] + m) * _B & MASK
    return a ^ a >> 32, b ^ b >> 29


def unkeyed(row: Sequence[int]) -> tuple[int, int]:
    """Both lanes of the former hash of a key of two bigint columns."""
    state = _START
    for value, salt in zip(row, _SALTS, strict=True):
        m = ((value & MASK) + salt) * _M1 & MASK
        m = (m ^ m >> 32) * _M2 & MASK
        state = unkeyed_step(state, m ^ m >> 29)
    return state


def unmixed(m: int, salt: int) -> int:
    """The bigint whose mixed word is ``m``."""
    m = (m ^ m >> 29 ^ m >> 58) * pow(_M2, -1, 1 << 64) & MASK
    value = ((m ^ m >> 32) * pow(_M1, -1, 1 << 64) - salt) & MASK
    return value - (1 << 64) if value >> 63 else value


def colliding(rng: random.Random) -> tuple[list[int], list[int]]:
    """Two keys of two bigints that are one to the former hash: each found in a few tries.

    Of the first words one leaves lane ``a`` at a number, the other at that number with all its bits but the last
    inverted. Second words that differ in the same bits make lane ``a`` equal again. Lane ``b``, which adds, takes any
    difference between them whose last two bits are 10.
    """
    bits = MASK - 1
    while True:
        one = rng.getrandbits(64)
        goal = unkeyed_step(_START, one)[0] ^ bits
        other = _START[0] ^ (goal ^ goal >> 32) * pow(_A, -1, 1 << 64) & MASK
        second = (unkeyed_step(_START, other)[1] - unkeyed_step(_START, one)[1] + bits & MASK) >> 1
        keys = tuple(
            [unmixed(m, salt) for m, salt in zip(ms, _SALTS, strict=True)]
            for ms in ((one, second), (other, second ^ bits))
        )
        if unkeyed(keys[0]) == unkeyed(keys[1]):
            return keys[0], keys[1]


def test_keys_that_were_chosen_to_collide_do_not() -> None:
    """Pairs of keys that were one row without a seed are two rows under any."""
    rng = random.Random(5)
    pairs = [colliding(rng) for _ in range(200)]
    assert all(one != other and unkeyed(one) == unkeyed(other) for one, other in pairs)
    schema = keyed(Kind.INT8, Kind.INT8)
    rows = [row for pair in pairs for row in pair]
    columns = [pa.array([row[i] for row in rows]) for i in range(2)]
    for seed in [SEED, *(new_seed() for _ in range(20))]:
        keys = KeyEncoder(schema, seed).encode_columns(columns)
        assert len(set(numbers(keys))) == len(rows)
        assert keys.low is not None
        assert len(np.unique(keys.high)) == len(np.unique(keys.low)) == len(rows)


def test_another_seed_is_another_hash() -> None:
    """A hash is another one under another seed, but that of a key of zeros alone."""
    rows = pa.array(["", "a", None, "x" * 100])
    schema = keyed(Kind.TEXT)
    hashes = [numbers(KeyEncoder(schema, new_seed()).encode_columns([rows])) for _ in range(10)]
    assert len({h for each in hashes for h in each[1:]}) == 30
    assert [each[0] for each in hashes] == [0] * 10


@given(st.lists(st.tuples(st.none() | st.text("ab\0", max_size=20), st.none() | st.text("ab\0", max_size=20))))
def test_different_keys_have_different_hashes(rows: list[tuple[str | None, str | None]]) -> None:
    """Wherever one column ends and the next begins, with NULLs and zero bytes."""
    columns = [pa.array([row[i] for row in rows], pa.string()) for i in range(2)]
    keys = KeyEncoder(keyed(Kind.TEXT, Kind.TEXT), new_seed()).encode_columns(columns)
    assert len(set(numbers(keys))) == len(set(rows))


def test_single_integer_is_itself() -> None:
    """A key of one integer column is that integer, however wide."""
    for kind in (Kind.INT2, Kind.INT4, Kind.INT8, Kind.OID):
        keys = encode(keyed(kind), [3, -1, 2])
        assert keys.kind is KeyKind.INTEGER
        assert numbers(keys) == [3, -1, 2]


def test_null_integer_key_is_refused() -> None:
    """NULL as a whole key stands for no row."""
    with pytest.raises(NeedsOperator) as e:
        encode(keyed(Kind.INT8), [1, None])
    assert e.value.code == "null_key"


def test_widened_columns_keep_their_keys() -> None:
    """int4 to int8, and float4 to float8, change no key."""
    assert numbers(encode(keyed(Kind.INT4, Kind.FLOAT4), [-5], [0.5])) == numbers(
        encode(keyed(Kind.INT8, Kind.FLOAT8), [-5], [0.5])
    )


def test_floats_are_keys_as_in_postgres() -> None:
    """Both zeros are one key, and every NaN is."""
    other_nan = struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000001))[0]
    keys = numbers(encode(keyed(Kind.FLOAT8), [0.0, -0.0, float("nan"), other_nan]))
    assert keys[0] == keys[1]
    assert keys[2] == keys[3]
    assert keys[0] != keys[2]


def test_other_representations_are_the_same_key() -> None:
    """Large strings and dictionaries, as other readers give them, hash as strings do."""
    encoder = KeyEncoder(keyed(Kind.TEXT), SEED)
    plain = pa.array(["a", None, "b" * 20, "a"])
    expected = numbers(encoder.encode_columns([plain]))
    assert numbers(encoder.encode_columns([plain.cast(pa.large_string())])) == expected
    assert numbers(encoder.encode_columns([plain.dictionary_encode()])) == expected


def test_hashes_of_many_similar_keys_differ() -> None:
    """300,000 pairs of small integers, and as many texts, have as many different halves of keys."""
    n = 300_000
    i = np.arange(n)
    pairs = encode(keyed(Kind.INT4, Kind.INT4), i // 1000, i % 1000)  # type: ignore[arg-type]  # arrays are sequences
    texts = KeyEncoder(keyed(Kind.TEXT), SEED).encode_columns([pa.array(i).cast(pa.string())])
    for keys in (pairs, texts):
        assert keys.low is not None
        assert len(np.unique(keys.high)) == n
        assert len(np.unique(keys.low)) == n


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3))))
def test_order_sorts_by_both_halves(pairs: list[tuple[int, int]]) -> None:
    """Keys sort by both halves even where the first is equal, and `last` finds each key's last row."""
    high, low = (np.array([p[i] for p in pairs], np.uint64) for i in (0, 1))
    keys = Keys(KeyKind.HASH, high, low)
    assert numbers(keys.take(keys.order())) == sorted(numbers(keys))
    stable = keys.order(stable=True)
    assert [int(x) for x in stable] == sorted(range(len(pairs)), key=lambda r: pairs[r])
    expected = {p: r for r, p in enumerate(pairs)}
    assert [int(x) for x in keys.last()] == [expected[p] for p in sorted(expected)]


@given(st.sets(st.integers(0, 8)), st.sets(st.integers(0, 8)), st.booleans())
def test_keys_without_others(some: set[int], others: set[int], hashed: bool) -> None:
    """The difference has each key once that the others lack, also if several hashes share a half."""

    def made(chosen: set[int]) -> Keys:
        values = np.array(sorted(chosen, reverse=True), np.int64)
        if not hashed:
            return Keys(KeyKind.INTEGER, values)
        return Keys(KeyKind.HASH, (values // 3).astype(np.uint64), (values % 3).astype(np.uint64))

    assert sorted(numbers(made(some).without(made(others)))) == sorted(numbers(made(some - others)))
