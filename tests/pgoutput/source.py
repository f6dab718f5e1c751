"""A real PostgreSQL for the tests of this folder: schemas, streams, copies, and printed values."""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
import pyarrow as pa
from tests.rigs.database import Database

from levada.errors import DecodeError
from levada.pgoutput.changes import LogicalMessage
from levada.pgoutput.copybinary import CopyDecoder, select_list
from levada.pgoutput.messages import Relation
from levada.schema import Column, IdentityKind, ReplicatedTableSchema, TypeInfo, resolve_type
from levada.values import Lsn, QualifiedTable, SnapshotId, TableId

SETTINGS = "-c timezone=UTC -c datestyle=ISO -c extra_float_digits=3 -c synchronous_commit=on"
"""The settings of the replication connection.

In addition, a commit is in the stream when its statement has returned.
"""

_IDENTITY = {"d": IdentityKind.PRIMARY_KEY, "i": IdentityKind.INDEX, "f": IdentityKind.FULL, "n": IdentityKind.MISSING}


@dataclass
class Resolver:
    """Fixed schemas by table. A table that is not among them is not replicated."""

    schemas: dict[int, ReplicatedTableSchema]
    announce: ReplicatedTableSchema | None = None
    """The version that the next logical message announces."""
    seen: list[tuple[Relation, SnapshotId]] = field(default_factory=list)
    leaves: list[tuple[TableId, TableId]] = field(default_factory=list)

    def leaf(self, leaf: TableId, root: TableId, at: SnapshotId, xid: int) -> None:
        self.leaves.append((leaf, root))

    def relation(self, relation: Relation, at: SnapshotId, xid: int) -> ReplicatedTableSchema | None:
        self.seen.append((relation, at))
        return self.schemas.get(relation.oid)

    def truncated(self, tables: Collection[TableId], at: SnapshotId) -> None:
        """Do nothing."""

    def failed(self, table: TableId, error: DecodeError, at: SnapshotId) -> None:
        """End the session."""
        raise error

    def message(self, message: LogicalMessage, at: SnapshotId) -> ReplicatedTableSchema | None:
        if self.announce is None:
            return None
        announced, self.announce = replace(self.announce, snapshot_id=at), None
        self.schemas[announced.id] = announced
        return announced


class Versions:
    """A resolver that makes a version of every RELATION, with the column's position as its attnum."""

    def relation(self, relation: Relation, at: SnapshotId, xid: int) -> ReplicatedTableSchema | None:
        columns = tuple(
            Column(k, c.name, resolve_type(c.type_oid, c.typmod), str(c.type_oid), c.type_oid, c.typmod)
            for k, c in enumerate(relation.columns, 1)
        )
        keys = tuple(k for k, c in enumerate(relation.columns, 1) if c.is_key)
        return ReplicatedTableSchema(
            relation.oid, relation.table, columns, _IDENTITY[relation.identity], keys, keys, snapshot_id=at
        )

    def truncated(self, tables: Collection[TableId], at: SnapshotId) -> None:
        """Do nothing."""

    def leaf(self, leaf: TableId, root: TableId, at: SnapshotId, xid: int) -> None:
        """Do nothing."""

    def failed(self, table: TableId, error: DecodeError, at: SnapshotId) -> None:
        """End the session."""
        raise error

    def message(self, message: LogicalMessage, at: SnapshotId) -> ReplicatedTableSchema | None:
        return None


def decoded(schema: ReplicatedTableSchema, parts: Sequence[bytes]) -> pa.RecordBatch:
    """Decode the payloads of a binary COPY in one call."""
    return CopyDecoder(schema).decode(bytearray(b"".join(parts)), [len(part) for part in parts])


def connect(db: Database) -> psycopg.Connection[Any]:
    """Open a connection with the stream's settings."""
    return psycopg.connect(db.uri, autocommit=True, options=SETTINGS)


def types(conn: psycopg.Connection[Any]) -> dict[int, TypeInfo]:
    """Describe the types that are not built in."""
    found = conn.execute(
        "SELECT oid::int8, typname, typtype, typbasetype::int8, typtypmod,"
        " CASE typcategory WHEN 'A' THEN typelem::int8 ELSE 0 END FROM pg_type"
        " WHERE oid >= 16384 AND (typtype <> 'b' OR typcategory = 'A')"
    ).fetchall()
    return {row[0]: TypeInfo(*row) for row in found}


def read_schema(
    conn: psycopg.Connection[Any], table: str, catalog: Mapping[int, TypeInfo] | None = None
) -> ReplicatedTableSchema:
    """Read a table's columns and primary key from the catalog."""
    rows = conn.execute(
        "SELECT attrelid::int8, attnum, attname, atttypid::int8, atttypmod, format_type(atttypid, atttypmod)"
        " FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        [table],
    ).fetchall()
    key = conn.execute("SELECT indkey::int2[] FROM pg_index WHERE indrelid = %s::regclass AND indisprimary", [table])
    attnums = tuple(a for (found,) in key.fetchall() for a in found)
    identity = conn.execute("SELECT relreplident FROM pg_class WHERE oid = %s::regclass", [table]).fetchone()
    assert identity is not None
    columns = tuple(Column(a, n, resolve_type(o, m, catalog), t, o, m) for _, a, n, o, m, t in rows)
    kind = _IDENTITY[identity[0]]
    carried = tuple(c.attnum for c in columns) if kind is IdentityKind.FULL else attnums
    return ReplicatedTableSchema(TableId(rows[0][0]), QualifiedTable("public", table), columns, kind, carried, attnums)


def create_slot(conn: psycopg.Connection[Any], name: str = "s") -> None:
    """Publish every table, and create a slot that keeps what is written from now on."""
    conn.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [name])


def stream(conn: psycopg.Connection[Any], name: str = "s") -> list[bytes]:
    """Take what the slot has, each message as the CopyData payload that a walsender sends."""
    found = conn.execute(
        "SELECT lsn::text, data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL,"
        " 'proto_version', '1', 'publication_names', 'p', 'messages', 'true')",
        [name],
    ).fetchall()
    return [b"w" + struct.pack("!QQQ", lsn := Lsn.parse(text), lsn, 0) + data for text, data in found]


def copy(conn: psycopg.Connection[Any], schema: ReplicatedTableSchema) -> list[bytes]:
    """COPY the table as the initial copy does, ordered by its first column."""
    with conn.cursor().copy(
        f"COPY (SELECT {select_list(schema)} FROM {schema.name.name} ORDER BY 1) TO STDOUT (FORMAT binary)".encode()
    ) as out:
        return [bytes(part) for part in out]


def printed(conn: psycopg.Connection[Any], expressions: Sequence[str], table: str) -> list[tuple[Any, ...]]:
    """Return what PostgreSQL itself computes of the table's rows, ordered by the first column."""
    query = f"SELECT {', '.join(expressions)} FROM {table} ORDER BY 1"
    return conn.execute(query.encode()).fetchall()
