"""Decoding of transactions, relations and messages, and the input that the decoder refuses."""

from __future__ import annotations

import struct
from dataclasses import replace

import pyarrow as pa
import pytest
from tests.pgoutput.capture_golden import load
from tests.pgoutput.source import Resolver, Versions, connect, create_slot, read_schema, stream
from tests.rigs.database import Database

from levada.errors import DecodeError
from levada.pgoutput.changes import LogicalMessage, RelationChange, TableChanges, Truncate
from levada.pgoutput.decoder import Decoder, Item
from levada.pgoutput.messages import HEADER
from levada.pgoutput.text import parse_text
from levada.schema import ColumnType, Kind
from levada.schema.changes import OLD, OLD_KIND, ORDINAL, UNCHANGED, change_schema
from levada.values import Lsn, SnapshotId, TableId


def kinds(messages: list[bytes]) -> list[str]:
    """The kind of each message."""
    return [chr(m[HEADER]) for m in messages]


class Contained(Versions):
    """A resolver that goes on after the failure of a table."""

    def __init__(self) -> None:
        self.failures: list[tuple[TableId, DecodeError]] = []

    def failed(self, table: TableId, error: DecodeError, at: SnapshotId) -> None:
        self.failures.append((table, error))


def refusal(messages: list[bytes]) -> DecodeError:
    """Decode what must be refused."""
    with pytest.raises(DecodeError) as caught:
        Decoder(Versions()).decode(messages)
    return caught.value


def test_a_row_of_an_unknown_relation_is_refused() -> None:
    """Without its RELATION a row cannot be read, and the error names its LSN."""
    messages = load("rows")
    at = kinds(messages).index("R")
    error = refusal(messages[:at] + messages[at + 1 :])
    assert error.code == "unknown_relation"
    assert str(Lsn.from_bytes(messages[at + 1][1:9], "big")) in error.message


def test_a_row_with_a_damaged_value_is_refused() -> None:
    """The error names the table, the LSN of the row and the column, and has no value."""
    messages = load("rows")
    at = next(i for i, m in enumerate(messages) if b"1.50" in m)
    error = refusal([*messages[:at], messages[at].replace(b"1.50", b"1.x0"), *messages[at + 1 :]])
    assert error.code == "malformed_row"
    lsn = Lsn.from_bytes(messages[at][1:9], "big")
    assert error.message == f"row of public.t at LSN {lsn}: column amount: an invalid decimal128(8, 2)"


def test_rows_that_cannot_be_read_leave_the_rows_of_other_tables() -> None:
    """Only their table fails, and its later rows are ignored. The transactions are complete."""
    messages = load("rows")
    at = next(i for i, m in enumerate(messages) if b"1.50" in m)
    relation = messages[at][HEADER + 1 : HEADER + 5]
    other = relation[:3] + bytes([relation[3] ^ 1])
    doubled = []
    for message in messages:
        doubled.append(message)
        if chr(message[HEADER]) in "RIUD":
            doubled.append(message[: HEADER + 1] + other + message[HEADER + 5 :])
    damaged = [m.replace(b"1.50", b"1.x0") if m is messages[at] else m for m in doubled]
    resolver = Contained()
    good, bad = Decoder(resolver).decode(doubled), Decoder(resolver).decode(damaged)
    assert [(t, error.code) for t, error in resolver.failures] == [(int.from_bytes(relation, "big"), "malformed_row")]
    assert bad.transactions == good.transactions
    assert bad.rows == good.rows // 2


def test_the_default_of_an_added_column_is_a_text_of_its_type() -> None:
    """PostgreSQL has it for rows that are older than the column. Another text is an error without the text."""
    number = ColumnType(Kind.INT4)
    assert parse_text(number, "7").as_py() == 7
    with pytest.raises(DecodeError) as malformed:
        parse_text(number, "seven")
    assert malformed.value.code == "malformed_value"
    assert "for rows that are older than the column is an invalid int32" in malformed.value.message
    assert "seven" not in str(malformed.value)


def test_a_row_outside_of_a_transaction_is_refused() -> None:
    """A row needs a BEGIN before it and no COMMIT in between."""
    messages = load("rows")
    commit = kinds(messages).index("C")
    row = messages[commit - 1]
    assert refusal(messages[1:]).code in {"row_outside_transaction", "transactions_do_not_nest"}
    assert refusal([*messages[: commit + 1], row]).code == "row_outside_transaction"


def test_a_commit_must_be_the_one_that_begin_announced() -> None:
    """A COMMIT with another LSN than BEGIN's final LSN, or without a BEGIN, is refused."""
    messages = load("rows")
    at = kinds(messages).index("C")
    broken = bytearray(messages[at])
    broken[HEADER + 9] ^= 1
    assert refusal([*messages[:at], bytes(broken)]).code == "commit_lsn_mismatch"
    assert refusal([messages[at]]).code == "transactions_do_not_nest"
    assert refusal([messages[0], messages[0]]).code == "transactions_do_not_nest"


def test_messages_of_other_protocol_versions_are_refused() -> None:
    """Protocol version 1 has no streamed transactions. Their messages are refused, and not skipped."""
    messages = load("rows")
    assert refusal([messages[0][:HEADER] + b"S" + bytes(5)]).code == "unsupported_message"


def test_rows_of_a_table_that_is_not_replicated_still_count() -> None:
    """Ordinals are the same whether or not a table of the publication is read, so that a replay numbers alike."""
    messages = load("schema_change")
    everything = Decoder(Versions()).decode(messages)
    schemas = {i.schema.id: i.schema for i in everything.items if isinstance(i, RelationChange)}
    other = next(s for s in schemas.values() if s.name.name == "other")
    alone = Decoder(Resolver({other.id: other})).decode(messages)
    assert alone.rows == 2
    assert [o for i in alone.items if isinstance(i, TableChanges) for o in i.rows[ORDINAL].to_pylist()] == [1, 4]


def test_a_version_is_announced_once_and_again_on_a_replay() -> None:
    """A session announces a version that begins here or differs from the former one, and no other."""
    messages = load("schema_change")
    first = Decoder(Versions()).decode(messages)
    versions = [i.schema for i in first.items if isinstance(i, RelationChange) and i.schema.name.name == "t"]
    copied = replace(versions[0], snapshot_id=SnapshotId(0))
    decoder = Decoder(Resolver({copied.id: copied}))
    assert not [i for i in decoder.decode(messages).items if isinstance(i, RelationChange)]
    assert len([i for i in Decoder(Versions()).decode(messages).items if isinstance(i, RelationChange)]) == 5


def test_rows_are_split_where_the_schema_changes_and_at_truncates() -> None:
    """The items of a table are in order: rows, what happened to the table, the rows after it."""
    changed = Decoder(Versions()).decode(load("schema_change")).items
    assert shapes(changed, "t") == [
        ("RelationChange", None),
        ("TableChanges", 2),
        ("RelationChange", None),
        ("TableChanges", 1),
        ("RelationChange", None),
        ("TableChanges", 1),
        ("RelationChange", None),
        ("TableChanges", 1),
    ]
    truncated = Decoder(Versions()).decode(load("truncate")).items
    assert shapes(truncated, "p") == [
        ("RelationChange", None),
        ("TableChanges", 3),
        ("RelationChange", None),
        ("Truncate", None),
        ("TableChanges", 1),
    ]


def shapes(items: tuple[Item, ...], table: str) -> list[tuple[str, int | None]]:
    """Return the changes of a table: the kinds of its items, and the number of rows of each."""
    ids = {i.schema.id for i in items if isinstance(i, RelationChange) and i.schema.name.name == table}
    found: list[tuple[str, int | None]] = []
    for item in items:
        if isinstance(item, LogicalMessage):
            continue
        if ids.intersection(item.tables if isinstance(item, Truncate) else [item.schema.id]):
            found.append((type(item).__name__, item.rows.num_rows if isinstance(item, TableChanges) else None))
    return found


def test_columns_are_matched_by_name() -> None:
    """A column that is excluded is passed over, one that is not on the wire is NULL."""
    messages = load("rows")
    schema = next(i.schema for i in Decoder(Versions()).decode(messages).items if isinstance(i, RelationChange))
    added = replace(schema.columns[1], attnum=9, name="later")
    schema = replace(schema, columns=(schema.columns[0], schema.columns[2], added), snapshot_id=SnapshotId(0))
    (changes,) = Decoder(Resolver({schema.id: schema})).decode(messages).items
    assert isinstance(changes, TableChanges)
    assert changes.rows.schema.names[:3] == ["id", "amount", "later"]
    assert changes.rows.column("later").null_count == changes.rows.num_rows
    assert str(changes.rows.column("amount")[0]) == "1.50"


def test_optional_columns_are_there_only_where_they_say_something() -> None:
    """Old images, unknown values and unrepresentable ones each bring their column, in the agreed layout."""
    for name in ("rows", "toast", "identities"):
        for item in Decoder(Versions()).decode(load(name)).items:
            if not isinstance(item, TableChanges):
                continue
            names = item.rows.schema.names
            layout = change_schema(
                item.schema,
                old=OLD in names,
                unchanged=UNCHANGED in names,
                unrepresentable="_levada_unrepresentable" in names,
            )
            assert item.rows.schema.equals(layout)
            if OLD_KIND in names:
                assert item.rows[OLD_KIND].null_count < item.rows.num_rows
            if UNCHANGED in names:
                assert item.rows[UNCHANGED].null_count < item.rows.num_rows


def test_a_ddl_message_announces_a_version_before_the_next_rows(db: Database) -> None:
    """PostgreSQL sends a RELATION after a table's change, so rows after the message have the announced version."""
    with connect(db) as conn:
        conn.execute("CREATE TABLE t (id int PRIMARY KEY, a int)")
        conn.execute("CREATE PUBLICATION p FOR ALL TABLES")
        create_slot(conn)
        old = read_schema(conn, "t")
        with conn.transaction():
            conn.execute("INSERT INTO t VALUES (1, 1)")
            conn.execute("ALTER TABLE t ADD b text")
            conn.execute("SELECT pg_logical_emit_message(true, 'ddl', 'added')")
            conn.execute("INSERT INTO t VALUES (2, 2, 'b')")
        new = read_schema(conn, "t")
        messages = stream(conn)
    resolver = Resolver({old.id: old}, announce=new)
    items = Decoder(resolver, message_prefixes=["ddl"]).decode(messages).items
    # The message comes first: the rows before it are released when it turns out to announce a version.
    assert [type(i) for i in items] == [LogicalMessage, TableChanges, RelationChange, TableChanges]
    message, before, change, after = items
    assert isinstance(message, LogicalMessage)
    assert isinstance(before, TableChanges)
    assert isinstance(change, RelationChange)
    assert isinstance(after, TableChanges)
    assert (message.prefix, message.content, message.transactional) == ("ddl", b"added", True)
    assert before.rows.schema.names[:2] == ["id", "a"]
    assert before.rows[ORDINAL].to_pylist() == [0]
    assert (change.ordinal, change.schema.snapshot_id) == (1, change.commit_lsn)
    assert after.schema == change.schema
    assert after.rows.column("b").to_pylist() == ["b"]


def test_rows_of_partitions_are_streamed_as_their_root(db: Database) -> None:
    """Each partition is reported with its root, whatever the slices are. Tables of one TRUNCATE are not partitions."""
    with connect(db) as conn:
        for statement in (
            "CREATE TYPE mood AS ENUM ('good')",
            "CREATE TABLE p (id int PRIMARY KEY, m mood) PARTITION BY LIST (id)",
            "CREATE TABLE p_1 PARTITION OF p FOR VALUES IN (1)",
            "CREATE TABLE p_2 PARTITION OF p FOR VALUES IN (2) PARTITION BY LIST (id)",
            "CREATE TABLE p_2d PARTITION OF p_2 DEFAULT",
            "CREATE TABLE t (id int PRIMARY KEY, m mood)",
            "CREATE TABLE u (id int PRIMARY KEY, m mood)",
            "CREATE PUBLICATION p FOR TABLE p, t, u WITH (publish_via_partition_root)",
        ):
            conn.execute(statement)  # type: ignore[arg-type]
        create_slot(conn)
        conn.execute("INSERT INTO t VALUES (1)")
        conn.execute("INSERT INTO p VALUES (1), (2)")
        conn.execute("INSERT INTO u VALUES (1)")
        conn.execute("TRUNCATE p, t, u")
        oids = {name: TableId(oid) for name, oid in conn.execute("SELECT relname, oid::int FROM pg_class")}
        messages = stream(conn)
    expected = [(oids["p_1"], oids["p"]), (oids["p_2d"], oids["p"])]
    for slices in ([messages], [[m] for m in messages]):
        resolver = Resolver({})
        decoder = Decoder(resolver)
        for part in slices:
            decoder.decode(part)
        assert resolver.leaves == expected


def test_a_truncate_names_only_replicated_tables() -> None:
    """A table that is not replicated is left out, and a TRUNCATE of none such is no item, but counts."""
    messages = load("truncate")
    items = Decoder(Versions()).decode(messages).items
    schemas = {i.schema.name.name: i.schema for i in items if isinstance(i, RelationChange)}
    only_p = Decoder(Resolver({schemas["p"].id: schemas["p"]})).decode(messages).items
    truncates = [i for i in only_p if isinstance(i, Truncate)]
    assert [(t.tables, t.cascade, t.ordinal) for t in truncates] == [((schemas["p"].id,), True, 1)]
    rows = [o for i in only_p if isinstance(i, TableChanges) for o in i.rows[ORDINAL].to_pylist()]
    assert rows == [0, 1, 0, 2]


def test_large_slices_are_decoded_in_parts() -> None:
    """A slice beyond what 32-bit offsets reach gives the same items as slices that are small enough."""
    messages = load("toast")
    whole = Decoder(Versions()).decode(messages)
    parts = Decoder(Versions(), part_bytes=5000).decode(messages)
    assert (parts.rows, parts.transactions, parts.end_lsn) == (whole.rows, whole.transactions, whole.end_lsn)
    assert not parts.in_transaction


def test_a_relation_with_a_broken_body_is_refused() -> None:
    """The bodies of single messages are read within their bounds."""
    messages = load("rows")
    at = kinds(messages).index("R")
    for size in range(HEADER + 1, len(messages[at])):
        assert refusal([*messages[:at], messages[at][:size]]).code == "malformed_message"
    claim = messages[0][:HEADER] + b"T" + struct.pack("!IB", 1 << 30, 0)
    assert refusal([messages[0], claim]).code == "malformed_message"


def test_escape_format_of_bytea_and_single_values() -> None:
    """A server may have ``bytea_output = escape``. Constants of the catalog are read one at a time."""
    bytea = ColumnType(Kind.BYTEA)
    assert parse_text(bytea, r"a\\\001\377").as_py() == b"a\\\x01\xff"
    assert parse_text(bytea, r"\x00ff").as_py() == b"\x00\xff"
    assert not parse_text(ColumnType(Kind.DATE), "infinity").is_valid
    assert parse_text(ColumnType(Kind.TIMESTAMPTZ), "1890-01-01 00:00:00+00:19:32").value == -2524522772000000
    assert parse_text(ColumnType(Kind.TIMESTAMPTZ), "2024-01-01 00:00:00-05:30").cast(pa.int64()).as_py() % 10**6 == 0
    with pytest.raises(DecodeError):
        parse_text(ColumnType(Kind.INT4), "one")
