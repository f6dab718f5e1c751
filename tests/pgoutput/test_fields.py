"""Values that are read from the beginnings of fields: each length around 12 bytes, NULL, and the end of the buffer."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Sequence
from decimal import Decimal

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from tests.pgoutput.source import decoded

from levada.pgoutput.copybinary import SIGNATURE
from levada.pgoutput.messages import HEADER, RelationColumn
from levada.pgoutput.rows import RowMessages, decode_rows
from levada.pgoutput.text import decode_text
from levada.pgoutput.tuples import read_tuples
from levada.pgoutput.wire import WireBuffer, sizes_of
from levada.schema import Column, ColumnType, IdentityKind, ReplicatedTableSchema, resolve_type
from levada.schema.masks import NO_KEYS
from levada.values import QualifiedTable, TableId

OIDS = {"bigint": 20, "smallint": 21, "text": 25, "float8": 701, "numeric": 1700, "uuid": 2950}
NUMERIC_12_2 = (12 << 16 | 2) + 4

TEXTS = st.none() | st.text("aé", max_size=9) | st.sampled_from(["", *("x" * n for n in range(10, 18)), "x" * 5000])
INTS = st.none() | st.integers(-(1 << 63), (1 << 63) - 1) | st.sampled_from([10**11 - 1, 10**11, 10**12, -(10**11)])
CENTS = st.integers(-(10**12) + 1, 10**12 - 1).map(lambda n: Decimal(n).scaleb(-2))
DECIMALS = st.none() | CENTS | st.sampled_from([Decimal("0.00"), Decimal("99999999.99"), Decimal("-100000000.00")])
FLOATS = st.none() | st.floats(allow_nan=False, allow_infinity=False)
ROWS = st.lists(st.tuples(TEXTS, INTS, DECIMALS, FLOATS), max_size=30)


def kind(sql: str) -> ColumnType:
    """The type of a column, numeric with 12 digits of which 2 are after the point."""
    return resolve_type(OIDS[sql], NUMERIC_12_2 if sql == "numeric" else -1)


def tuples(rows: Sequence[Sequence[str | None]]) -> list[bytes]:
    """Rows as TupleData, with texts as values."""
    return [b"".join([struct.pack("!H", len(row)), *map(value, row)]) for row in rows]


def value(text: str | None) -> bytes:
    """A value in TupleData."""
    return b"n" if text is None else b"t" + struct.pack("!I", len(data := text.encode())) + data


@given(ROWS)
def test_the_stream_holds_short_and_long_values_alike(
    rows: list[tuple[str | None, int | None, Decimal | None, float | None]],
) -> None:
    """Texts and numbers are the same whether they fit into the beginning of their field, and whichever are NULL."""
    texts = [
        (a, *(None if v is None else str(v) for v in (b, c)), None if d is None else repr(d)) for a, b, c, d in rows
    ]
    parts = tuples(texts)
    buffer, start, end = WireBuffer.join(parts, sizes_of(parts))
    columns, at = read_tuples(buffer, start, end, 4)
    assert at.tolist() == end.tolist()
    for k, sql in enumerate(("text", "bigint", "numeric", "float8")):
        array = decode_text(columns[k].values, kind(sql)).array
        array.validate(full=True)
        assert array.to_pylist() == [row[k] for row in rows]


def test_an_unchanged_value_is_read_from_the_old_row() -> None:
    """A value that is filled from the old row is read there, even if it fits into the beginning of a field."""
    schema = table(["bigint", "text"])
    relation = [RelationColumn(c.name, c.type_oid, -1, is_key=True) for c in schema.columns]
    new = struct.pack("!H", 2) + value("7") + b"u"
    message = bytes(HEADER) + b"U" + bytes(4) + b"O" + tuples([("7", "short")])[0] + b"N" + new
    buffer, start, end = WireBuffer.join([message], np.array([len(message)]))
    zero = np.zeros(1, np.int64)
    update = RowMessages(buffer, start, end, np.frombuffer(b"U", np.uint8), zero, zero, zero, zero)
    rows = decode_rows(update, relation, schema, NO_KEYS)
    assert rows.column("c2").to_pylist() == ["short"]


def table(types: Sequence[str]) -> ReplicatedTableSchema:
    """A table with columns c1, c2 and so on."""
    columns = tuple(
        Column(n, f"c{n}", kind(sql), sql, OIDS[sql], NUMERIC_12_2 if sql == "numeric" else -1)
        for n, sql in enumerate(types, 1)
    )
    return ReplicatedTableSchema(TableId(1), QualifiedTable("public", "t"), columns, IdentityKind.MISSING, (), ())


def copied(rows: Sequence[Sequence[bytes | None]], types: Sequence[str]) -> pa.RecordBatch:
    """Decode a binary COPY of these fields."""
    head = SIGNATURE + bytes(8)
    return decoded(
        table(types), [head, *(struct.pack("!H", len(row)) + b"".join(map(field, row)) for row in rows), b"\xff\xff"]
    )


def field(data: bytes | None) -> bytes:
    """A field in a binary COPY."""
    return struct.pack("!i", -1) if data is None else struct.pack("!I", len(data)) + data


def numeric(number: Decimal) -> bytes:
    """Return the bytes of ``numeric_send`` for a number with two digits after the point, without zeros at both ends."""
    whole, cents = divmod(abs(int(number.scaleb(2))), 100)
    digits = [whole // 10**8, whole // 10**4 % 10**4, whole % 10**4, cents * 100]
    weight = 2
    while digits and not digits[0]:
        digits, weight = digits[1:], weight - 1
    while digits and not digits[-1]:
        digits = digits[:-1]
    sign = 0x4000 if number < 0 else 0
    return struct.pack("!hhHh", len(digits), weight if digits else 0, sign, 2) + struct.pack(
        f"!{len(digits)}h", *digits
    )


UUIDS = st.none() | st.uuids() | st.sampled_from([uuid.UUID(int=0), uuid.UUID(int=(1 << 128) - 1)])


@given(
    st.lists(st.tuples(ROWS.map(lambda rows: rows[0] if rows else (None,) * 4), UUIDS, st.integers(-9, 9)), max_size=20)
)
def test_a_copy_holds_short_and_long_values_alike(
    rows: list[tuple[tuple[str | None, int | None, Decimal | None, float | None], uuid.UUID | None, int]],
) -> None:
    """Each fixed type is read from the beginning of its field, longer values from the buffer, up to its very end."""
    encoded = [
        (
            None if a is None else a.encode(),
            None if b is None else struct.pack("!q", b),
            None if c is None else numeric(c),
            None if d is None else struct.pack("!d", d),
            None if u is None else u.bytes,
            struct.pack("!h", n),
        )
        for (a, b, c, d), u, n in rows
    ]
    batch = copied(encoded, ["text", "bigint", "numeric", "float8", "uuid", "smallint"])
    batch.validate(full=True)
    expected = [(*row, None if u is None else str(u), n) for row, u, n in rows]
    assert list(zip(*(column.to_pylist() for column in batch.columns), strict=True)) == expected


def test_fields_are_readable_right_after_the_data() -> None:
    """A position at the end of the data is read as padding, so that a truncated row is refused and not read beyond."""
    buffer, _, end = WireBuffer.join([b"abc"], np.array([3]))
    fields = buffer.fields(end + 1)
    assert fields.length().tolist() == [0]
