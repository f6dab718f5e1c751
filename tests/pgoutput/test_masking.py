"""The mask of a value is the same in a copy and in the stream, and that of PostgreSQL where it computes one."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import replace

import pytest
from tests.pgoutput.source import Resolver, connect, copy, create_slot, printed, read_schema, stream
from tests.rigs.database import Database

from levada.errors import NeedsOperator
from levada.pgoutput.changes import TableChanges
from levada.pgoutput.copybinary import CopyDecoder, select_list
from levada.pgoutput.decoder import Decoder
from levada.schema import ReplicatedTableSchema
from levada.schema.changes import OLD, UNCHANGED
from levada.schema.masking import with_masks
from levada.schema.masks import NO_KEYS, Mask, TableMasks
from levada.values import MaskMethod

SECRET = b"a key that is longer than a block of SHA-256, so that it is hashed before it is used"
TEXTS = (
    *("", "a", "abcd", "abcde", "\u00e9\u00e8", "e\u0301x\u0323yz", "\u65e5\u672c\u8a9e\u30c6\u30ad\u30b9\u30c8"),
    *("\U0001f468\u200d\U0001f469\u200d\U0001f466 family", "tab\tand\nline", "trailing  ", "'quoted' \\ \"\u00fc\""),
)
TYPES = ("smallint", "bigint", "numeric", "float8", "date", "timestamptz", "uuid", "bytea", "jsonb", "int[]", "inet")
VALUES = (
    *("7", "-9", "1.50", "0.1", "'0044-03-15 BC'", "'infinity'", "'6ba7b810-9dad-11d1-80b4-00c04fd430c8'"),
    *("'\\x00ff'", '\'{"b":1,"a":[]}\'', "'{1,NULL,3}'", "'10.0.0.1/8'"),
)


class Keys:
    """One key."""

    def key(self, key_id: str) -> bytes:
        assert key_id == "one"
        return SECRET


def hashed(text: str | None) -> str | None:
    """Return the HMAC by Python's own module."""
    return None if text is None else hmac.digest(SECRET, text.encode(), hashlib.sha256).hex()


def masked(schema: ReplicatedTableSchema, **methods: Mask) -> ReplicatedTableSchema:
    """Return a version with these masks."""
    return with_masks(schema, TableMasks.of(methods), None, Keys())


@pytest.mark.parametrize("length", [1, 2, 4, 7, 1000])
def test_a_copy_and_the_stream_have_the_texts_of_postgres(db: Database, length: int) -> None:
    """For texts with characters of several bytes and of several code points, empty ones and NULL."""
    with connect(db) as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY, a text, b varchar, c char(9), d text)")
        conn.execute("CREATE PUBLICATION p FOR TABLE t")
        create_slot(conn)
        for number, text in enumerate(TEXTS):
            conn.execute("INSERT INTO t VALUES (%s, %s, %s, %s, %s)", [number, text, text, text[:9], text])
        conn.execute("INSERT INTO t VALUES (99)")
        first, last = Mask(MaskMethod.TRUNCATE, length), Mask(MaskMethod.LAST, length)
        schema = masked(read_schema(conn, "t"), a=first, b=last, c=last, d=Mask(MaskMethod.HMAC, 0, "one"))
        wanted = printed(
            conn, ["id", f"left(a, {length})", f"right(b, {length})", f"right(concat(c), {length})", "d"], "t"
        )
        wanted = [(i, a, b, c if i < 99 else None, hashed(d)) for i, a, b, c, d in wanted]
        parts = copy(conn, schema)
        copied = CopyDecoder(schema, Keys()).decode(bytearray(b"".join(parts)), [len(part) for part in parts])
        (changes,) = Decoder(Resolver({schema.id: schema}), keys=Keys()).decode(stream(conn)).items
        assert isinstance(changes, TableChanges)
    assert list(zip(*(column.to_pylist() for column in copied.columns), strict=True)) == wanted
    streamed = changes.rows.select(copied.schema.names)
    assert streamed.equals(copied)


def test_an_hmac_of_each_type_is_that_of_its_text(db: Database) -> None:
    """The copy, which reads other types in binary, has the text of the stream."""
    columns = ", ".join(f"c{i} {kind}" for i, kind in enumerate(TYPES))
    with connect(db) as conn:
        conn.execute(f"CREATE TABLE t (id int PRIMARY KEY, {columns})".encode())
        conn.execute("CREATE PUBLICATION p FOR TABLE t")
        create_slot(conn)
        conn.execute(f"INSERT INTO t VALUES (1, {', '.join(VALUES)})".encode())
        conn.execute("INSERT INTO t VALUES (2)")
        masks = {f"c{i}": Mask(MaskMethod.HMAC, 0, "one") for i in range(len(TYPES))}
        schema = masked(read_schema(conn, "t"), **masks)
        parts = copy(conn, schema)
        copied = CopyDecoder(schema, Keys()).decode(bytearray(b"".join(parts)), [len(part) for part in parts])
        (changes,) = Decoder(Resolver({schema.id: schema}), keys=Keys()).decode(stream(conn)).items
        [first, second] = printed(conn, ["id", *(f"concat(c{i})" for i in range(len(TYPES)))], "t")
    assert isinstance(changes, TableChanges)
    assert changes.rows.select(copied.schema.names).equals(copied)
    assert [column.to_pylist() for column in copied.columns] == [
        [1, 2],
        *([hashed(text), None] for text in first[1:]),
    ]
    assert set(second[1:]) == {""}


def test_old_rows_and_unchanged_values_are_masked(db: Database) -> None:
    """Of an update and a delete. A value that was not sent is known to be NULL under the mask Null."""
    with connect(db) as conn:
        conn.execute("CREATE TABLE t (k text PRIMARY KEY, big text, gone text)")
        for name in ("big", "gone"):
            conn.execute(f"ALTER TABLE t ALTER {name} SET STORAGE EXTERNAL".encode())
        conn.execute("CREATE PUBLICATION p FOR TABLE t")
        conn.execute("INSERT INTO t VALUES ('old', repeat('x', 9000), repeat('y', 9000))")
        create_slot(conn)
        conn.execute("UPDATE t SET k = 'new'")
        conn.execute("DELETE FROM t")
        hashes = Mask(MaskMethod.HMAC, 0, "one")
        schema = masked(read_schema(conn, "t"), k=hashes, big=Mask(MaskMethod.LAST, 3), gone=Mask(MaskMethod.NULL))
        (changes,) = Decoder(Resolver({schema.id: schema}), keys=Keys()).decode(stream(conn)).items
    assert isinstance(changes, TableChanges)
    rows = changes.rows
    assert rows.column("k").to_pylist() == [hashed("new"), hashed("new")]
    assert rows.column("gone").null_count == 2
    assert [old and old["k"] for old in rows.column(OLD).to_pylist()] == [hashed("old"), None]
    assert rows.column(UNCHANGED).to_pylist() == [[2], None]
    assert b"old" not in rows.serialize().to_pybytes()


def test_the_server_does_not_send_what_a_mask_removes(db: Database) -> None:
    """Neither a column that becomes NULL, nor more of a text than is kept. No statement has a key."""
    with connect(db) as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY, gone text, short text, hash text)")
        conn.execute("INSERT INTO t VALUES (1, 'private', 'private', 'public')")
        hashes = Mask(MaskMethod.HMAC, 0, "one")
        schema = masked(
            read_schema(conn, "t"), gone=Mask(MaskMethod.NULL), short=Mask(MaskMethod.TRUNCATE, 2), hash=hashes
        )
        assert b"private" not in b"".join(copy(conn, schema))
    assert SECRET.decode() not in select_list(schema)
    with pytest.raises(NeedsOperator, match="no Secret") as error:
        NO_KEYS.key("one")
    assert error.value.code == "mask_key_missing"


def test_a_masked_version_is_the_same_after_json(db: Database) -> None:
    """Also its default of older rows, which is masked in it."""
    with connect(db) as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
        schema = read_schema(conn, "t")
    columns = tuple(replace(c, missing_value="private") if c.name == "a" else c for c in schema.columns)
    version = masked(replace(schema, columns=columns), a=Mask(MaskMethod.HMAC, 0, "one"))
    assert version.by_attnum[2].missing_value == hashed("private")
    assert ReplicatedTableSchema.from_json(version.to_json()) == version
