"""Keys as numbers."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from levada.destinations.keys import KeyEncoder, KeyKind, Keys
from levada.errors import NeedsOperator
from levada.schema import Column, ColumnType, IdentityKind, Kind, ReplicatedTableSchema
from levada.values import QualifiedTable, TableId

MASK = (1 << 64) - 1


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
    return KeyEncoder(schema).encode(pa.Table.from_arrays(arrays, schema=schema.arrow))


def numbers(keys: Keys) -> list[int]:
    """The keys as Python integers: of a hash all 128 bits."""
    if keys.low is None:
        return [int(k) for k in keys.high]
    return [int(h) << 64 | int(v) for h, v in zip(keys.high, keys.low, strict=True)]


# The algorithm once more, row by row, from its description.


def finish(x: int) -> int:
    """MurmurHash3's fmix64."""
    x ^= x >> 33
    x = x * 0xFF51AFD7ED558CCD & MASK
    x ^= x >> 33
    x = x * 0xC4CEB9FE1A85EC53 & MASK
    return x ^ x >> 33


def words(kind: ColumnType, value: Any) -> list[int]:
    """A value's words."""
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
            halves = (divmod(reference([kind.element], [v]), 1 << 64) for v in value)
            return [len(value), *(x for pair in halves for x in pair)]
        case Kind.DATE:
            return [(value - date(1970, 1, 1)).days & MASK]
    raise AssertionError(kind)


def reference(types: Sequence[ColumnType], row: Sequence[Any]) -> int:
    """A row's 128 bits."""
    a, b = 0x243F6A8885A308D3, 0x13198A2E03707344
    for i, (kind, value) in enumerate(zip(types, row, strict=True)):
        fixed = 2 if kind.kind is Kind.DECIMAL else 1
        for w in [0] * fixed if value is None else words(kind, value):
            m = (w + (i + 1) * 0x9E3779B97F4A7C15) * 0xBF58476D1CE4E5B9 & MASK
            m ^= m >> 32
            m = m * 0x94D049BB133111EB & MASK
            m ^= m >> 29
            a = (a ^ m) * 0x87C37B91114253D5 & MASK
            a ^= a >> 32
            b = (b + m) * 0x4CF5AD432745937F & MASK
            b ^= b >> 29
        if value is None:
            a ^= 0xA4093822299F31D0
            b ^= 0x082EFA98EC4E6C89
    a = a + b & MASK
    b = b + a & MASK
    a, b = finish(a), finish(b)
    a = a + b & MASK
    b = b + a & MASK
    return a << 64 | b


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
    encoder = KeyEncoder(schema)
    expected = [reference(types, row) for row in rows]
    assert numbers(encoder.encode(table)) == expected
    assert numbers(encoder.encode(chunked)) == expected[start:]
    for batch in chunked.to_batches():
        assert set(numbers(encoder.encode(batch))) <= set(expected)


def test_hash_never_changes() -> None:
    """Keys on disk stay readable: these numbers were written by the first version."""
    uuid = "b2e39f3d-4409-4dca-87bb-e13ada8c515c"
    golden = {
        "text": numbers(encode(keyed(Kind.TEXT), ["", "a", "eight by", uuid, None])),
        "pair": numbers(encode(keyed(Kind.INT4, Kind.INT8), [1, -1], [2, 2**62])),
        "decimal": numbers(encode(keyed(ColumnType(Kind.DECIMAL, 12, 2)), [Decimal("1.25"), Decimal("-1.25")])),
        "time": numbers(
            encode(
                keyed(Kind.DATE, Kind.TIME, Kind.TIMESTAMP, Kind.BOOL, Kind.FLOAT8, Kind.BYTEA),
                [date(2026, 1, 2)],
                [time(3, 4, 5, 6)],
                [datetime(2026, 1, 2, 3, 4, 5)],
                [True],
                [0.5],
                [b"\x00\xff"],
            )
        ),
    }
    assert {k: [f"{n:032x}" for n in v] for k, v in golden.items()} == {
        "text": [
            "28f5d20ad53ce894d56fc23cfcb3e2c1",
            "9c437b279feedeef837c0bd53b4811ad",
            "5cefa68b53afb73499f05268908f49c3",
            "970dd6714b9481b5389213a493aeb7ba",
            "7b0c9be7eb1b695a16f4029e9cfe83fa",
        ],
        "pair": [
            "b0f440ee7dc3a74dccac861af8741c25",
            "50db3e90ae69f9a25760e7651555ffb8",
        ],
        "decimal": [
            "e630e0ea040e59305d3a2f5b69d5b008",
            "efe2fdf54d2e9be6f017d6723add0b90",
        ],
        "time": [
            "3ca9d204162f1a44300caa27839b0ca8",
        ],
    }


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
    encoder = KeyEncoder(keyed(Kind.TEXT))
    plain = pa.array(["a", None, "b" * 20, "a"])
    expected = numbers(encoder.encode_columns([plain]))
    assert numbers(encoder.encode_columns([plain.cast(pa.large_string())])) == expected
    assert numbers(encoder.encode_columns([plain.dictionary_encode()])) == expected


def test_hashes_of_many_similar_keys_differ() -> None:
    """300,000 pairs of small integers, and as many texts, have as many different halves of keys."""
    n = 300_000
    i = np.arange(n)
    pairs = encode(keyed(Kind.INT4, Kind.INT4), i // 1000, i % 1000)  # type: ignore[arg-type]  # arrays are sequences
    texts = KeyEncoder(keyed(Kind.TEXT)).encode_columns([pa.array(i).cast(pa.string())])
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
