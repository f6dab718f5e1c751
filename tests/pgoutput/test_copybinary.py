"""The framing of binary COPY, and what a broken copy is."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pgoutput.source import connect, copy, decoded, read_schema
from tests.rigs.database import Database

from levada.errors import DecodeError
from levada.pgoutput.copybinary import CopyDecoder
from levada.schema import Column, ColumnType, IdentityKind, Kind, ReplicatedTableSchema
from levada.values import QualifiedTable, TableId

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"
SCHEMA = ReplicatedTableSchema(
    TableId(1),
    QualifiedTable("public", "t"),
    tuple(
        Column(k, kind.value, ColumnType(kind, *size), kind.value, 0)
        for k, (kind, size) in enumerate(
            [
                (Kind.INT4, ()),
                (Kind.TEXT, ()),
                (Kind.DECIMAL, (12, 2)),
                (Kind.DECIMAL, (30, 9)),
                (Kind.TIMESTAMP, ()),
                (Kind.TIME, ()),
                (Kind.UUID, ()),
                (Kind.JSON, ()),
            ],
            1,
        )
    ),
    IdentityKind.MISSING,
)


def field(data: bytes | None) -> bytes:
    """A field of a row."""
    return b"\xff\xff\xff\xff" if data is None else len(data).to_bytes(4, "big") + data


NUMERIC = bytes.fromhex("0002 0000 0000 0002 0001 1388".replace(" ", ""))
ROW = b"\0\x08" + b"".join(
    map(field, [b"\0\0\0\x07", "é".encode(), NUMERIC, NUMERIC, bytes(8), bytes(8), bytes(range(16)), b"\x01{}"])
)
NULLS = b"\0\x08" + 8 * field(None)


def test_a_whole_copy_reads_as_its_rows(db: Database) -> None:
    """Header and trailer are no rows, wherever PostgreSQL puts them. Rows continue from call to call."""
    with connect(db) as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY, name text)")
        schema = read_schema(conn, "t")
        assert decoded(schema, copy(conn, schema)).num_rows == 0
        conn.execute("INSERT INTO t SELECT g, 'n' || g FROM generate_series(1, 5) g")
        parts = copy(conn, schema)
    decoder = CopyDecoder(schema)
    batches = [decoder.decode(bytearray(part), [len(part)]) for part in parts]
    assert [v for b in batches for v in b.column("name").to_pylist()] == [f"n{k}" for k in range(1, 6)]


@pytest.mark.parametrize("parts", [[HEADER + ROW, NULLS, TRAILER], [HEADER, ROW, NULLS, TRAILER], [ROW, NULLS]])
def test_the_frame_may_be_there_or_not(parts: list[bytes]) -> None:
    """A header alone, a header before the first row, or none: the rows are the same."""
    rows = decoded(SCHEMA, parts)
    assert rows.num_rows == 2
    first, second = rows.to_pylist()
    assert (first["int4"], first["text"], first["json"], str(first["uuid"])) == (
        7,
        "é",
        "{}",
        "00010203-0405-0607-0809-0a0b0c0d0e0f",
    )
    assert set(second.values()) == {None}


def test_a_header_and_a_trailer_alone_are_an_empty_copy() -> None:
    """An empty table's copy has no row, in one part or in two."""
    assert decoded(SCHEMA, [HEADER + TRAILER]).num_rows == 0
    assert decoded(SCHEMA, [HEADER, TRAILER]).num_rows == 0
    assert decoded(SCHEMA, []).num_rows == 0


def test_a_malformed_row_is_named() -> None:
    """The message has the table, the number of the row, and its column if one is malformed."""
    with pytest.raises(DecodeError) as truncated:
        decoded(SCHEMA, [ROW, b"\0"])
    assert truncated.value.code == "malformed_copy"
    assert truncated.value.message == "row 1 of the copy of public.t: it is truncated"
    with pytest.raises(DecodeError) as wrong:
        decoded(SCHEMA, [b"\0\x08" + field(b"\0") + 7 * field(None)])
    assert wrong.value.message == "row 0 of the copy of public.t: column int4: a value that does not have 4 bytes"


@settings(max_examples=300)
@given(data=st.data())
def test_a_broken_copy_is_a_decode_error_or_decodes(data: st.DataObject) -> None:
    """Whatever the bytes of a row: a DecodeError that names the row, or valid columns."""
    row = bytearray(ROW)
    for _ in range(data.draw(st.integers(0, 3))):
        row[data.draw(st.integers(0, len(row) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(row)))
    try:
        rows = decoded(SCHEMA, [ROW, bytes(row[:cut]), NULLS])
    except DecodeError as error:
        assert "row 1" in error.message  # noqa: PT017  # either outcome is right, and this is what the one must say
        return
    rows.validate(full=True)
    assert rows.num_rows == 3
