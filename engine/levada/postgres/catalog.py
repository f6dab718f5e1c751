"""The source's catalog: the tables that a publication streams, with their sizes, schemas and types."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, LiteralString

import psycopg
from psycopg import sql

from levada import codes
from levada.errors import NeedsOperator, Transient
from levada.postgres.description import TableDescription, type_infos
from levada.postgres.description_sql import DESCRIPTION_QUERY, TYPES_QUERY
from levada.postgres.failures import source_errors
from levada.postgres.generated_columns import as_streamed
from levada.postgres.publications import create_statement, leave_out_unidentified
from levada.postgres.seal import SEAL_SCHEMA
from levada.postgres.silence import WatchedConnection
from levada.postgres.streamed import SCHEMAS_VERSION, leaves_of, streamed_relations
from levada.postgres.utf8_names import named_rows, naming
from levada.postgres.written_tables import WRITTEN
from levada.schema import ReplicatedTableSchema, TypeInfo
from levada.values import OnUnrepresentable, QualifiedTable, SnapshotId, TableId


def _without(query: sql.SQL, waits: Mapping[LiteralString, LiteralString]) -> sql.SQL:
    text = query.as_string(None)
    for call, constant in waits.items():
        assert call in text, call
        text = text.replace(call, constant)
    return sql.SQL(text)


_WITHOUT_WAITS: Final = _without(
    DESCRIPTION_QUERY,
    {"pg_catalog.pg_relation_size(l.oid) = 0": "false"},
)
"""The description without the function that waits for a table that another session has locked."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A relation that stores rows: an ordinary table or a partition.

    ``estimated_rows`` is None before the first ANALYZE. ``blocks`` are blocks of the main fork.
    """

    id: TableId
    name: QualifiedTable
    estimated_rows: int | None
    blocks: int
    bytes: int
    """Size of the table and its TOAST table, without indexes."""


@dataclass(frozen=True, slots=True)
class StreamedTable:
    """A table that a publication streams."""

    id: TableId
    name: QualifiedTable


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A table as the publication streams it.

    ``kind`` is ``r`` for an ordinary table or a partition, and ``p`` for a partitioned table that is published through
    its root. ``leaves`` are the relations that store the rows. An ordinary table is its own only leaf. ``row_filter``
    is an SQL condition with qualified names. ``column_attnums`` is the publication's column list, and None means all
    columns.
    """

    id: TableId
    name: QualifiedTable
    kind: str
    leaves: tuple[Leaf, ...]
    row_filter: str | None
    column_attnums: tuple[int, ...] | None

    @property
    def estimated_rows(self) -> int | None:
        """The sum over the leaves, or None if one of them was never analysed."""
        rows = [leaf.estimated_rows for leaf in self.leaves]
        return None if None in rows else sum(r for r in rows if r is not None)

    @property
    def blocks(self) -> int:
        """The sum over the leaves, in blocks of the server's ``block_size``, usually 8 KiB."""
        return sum(leaf.blocks for leaf in self.leaves)

    @property
    def bytes(self) -> int:
        """The sum over the leaves in bytes, with TOAST, without indexes."""
        return sum(leaf.bytes for leaf in self.leaves)


# Row filters and column lists exist since version 15. Before that, the catalog has no such columns.
# PostgreSQL ignores the filter if the publication has the schema too.
_LIMITS: Final = sql.SQL("""
    CASE WHEN NOT EXISTS (SELECT FROM pg_publication_namespace s WHERE s.pnpubid = p.oid AND s.pnnspid = c.relnamespace)
    THEN pg_get_expr(r.prqual, r.prrelid) END, r.prattrs::int2[]""")
_NO_LIMITS: Final = sql.SQL("NULL, NULL::int2[]")
_STREAMED: Final = sql.SQL("""
FROM {streamed} t
JOIN pg_publication p ON p.pubname = %(publication)s
LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = t.relid
JOIN pg_class c ON c.oid = t.relid
JOIN pg_namespace n ON n.oid = c.relnamespace
""")
_PUBLISHED: Final = sql.SQL("""
SELECT l.id, l.schema, l.name, l.rows, l.blocks, l.bytes, c.oid, n.nspname, c.relname, c.relkind, {limits}
{streamed}
LEFT JOIN LATERAL (
    SELECT lc.oid AS id, ln.nspname AS schema, lc.relname AS name, lc.reltuples::bigint AS rows,
        coalesce(pg_relation_size(lc.oid), 0) / current_setting('block_size')::int AS blocks,
        coalesce(pg_table_size(lc.oid), 0) AS bytes
    FROM (
        SELECT c.oid WHERE c.relkind = 'r'
        UNION ALL SELECT p.relid FROM {leaves} p WHERE c.relkind = 'p'
    ) AS leaf(id)
    -- OFFSET makes PostgreSQL look up each leaf. It would read all of pg_class for each table.
    CROSS JOIN LATERAL (SELECT * FROM pg_class r WHERE r.oid = leaf.id AND r.relkind = 'r' OFFSET 0) lc
    JOIN pg_namespace ln ON ln.oid = lc.relnamespace
) l ON true
WHERE n.nspname <> {own} AND (%(tables)s::oid[] IS NULL OR c.oid = ANY (%(tables)s::oid[]))
ORDER BY n.nspname, c.relname, l.schema, l.name
""")


@source_errors("reading the publication's tables")
def published_tables(
    conn: psycopg.Connection[Any], publication: str, tables: Collection[TableId] | None = None
) -> tuple[PublishedTable, ...]:
    """Return the tables that the publication streams, ordered by name, or those of ``tables``.

    Partitions are returned instead of their root unless the publication publishes through the root. Wait for each
    returned table that another session has locked. Raise NeedsOperator ``publication_missing``.
    """
    limits = _LIMITS if conn.info.server_version >= 150000 else _NO_LIMITS
    streamed = _STREAMED.format(streamed=streamed_relations(conn, some=tables is not None))
    query = _PUBLISHED.format(limits=limits, streamed=streamed, leaves=leaves_of("c.oid"), own=sql.Literal(SEAL_SCHEMA))
    with qualified_names(conn):
        wanted = None if tables is None else [int(t) for t in tables]
        rows = conn.execute(query, {"publication": publication, "tables": wanted}).fetchall()
    if not rows:
        _require_publication(conn, publication)
    return tuple(_published(group) for _, group in groupby(rows, key=lambda row: row[6]))


@source_errors("listing the publication's tables")
def streamed_tables(conn: psycopg.Connection[Any], publication: str) -> tuple[StreamedTable, ...]:
    """Return the same tables as `published_tables`, but only their names, without waiting for a lock."""
    query = sql.SQL("SELECT c.oid, n.nspname, c.relname {streamed} WHERE n.nspname <> {own} ORDER BY 2, 3").format(
        streamed=_STREAMED.format(streamed=streamed_relations(conn)), own=sql.Literal(SEAL_SCHEMA)
    )
    rows = named_rows(conn, query, {"publication": publication})
    _require_publication(conn, publication)
    return tuple(StreamedTable(TableId(oid), QualifiedTable(schema, name)) for oid, schema, name in rows)


def _require_publication(conn: psycopg.Connection[Any], publication: str) -> None:
    if conn.execute("SELECT 1 FROM pg_publication WHERE pubname = %s", [publication]).fetchone() is None:
        # Not FOR ALL TABLES: PostgreSQL would reject updates of tables without a replica identity.
        safe, _ = leave_out_unidentified(conn, publication, set(list_tables(conn)))
        raise NeedsOperator(
            "publication_missing",
            f"there is no publication {publication} in database {conn.info.dbname}",
            hint=create_statement(publication, sorted(safe)),
        )


@source_errors("listing the database's tables")
def list_tables(conn: psycopg.Connection[Any]) -> tuple[QualifiedTable, ...]:
    """Return the tables that could be published, ordered by name: permanent tables and partition roots, no partitions.

    Tables of system schemas and of extensions are left out, and so are those of
    `levada.postgres.written_tables`, and those whose names UTF-8 lacks.
    """
    rows = named_rows(
        conn,
        sql.SQL("""
        SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND NOT c.relispartition
          AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
          AND NOT EXISTS (SELECT 1 FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid
                          AND d.deptype = 'e')
          AND NOT {}
        ORDER BY 1, 2""").format(WRITTEN),
    )
    return tuple(QualifiedTable(schema, name) for schema, name in rows)


@dataclass(frozen=True, slots=True)
class CatalogVersion:
    """Hashes of the catalog: one of all tables' names, and one of the members of a publication."""

    tables: str
    publication: str


@source_errors("looking for new tables")
def read_catalog_version(conn: psycopg.Connection[Any], publication: str) -> CatalogVersion:
    """Return hashes that change when a table is created or renamed, and when the publication is altered.

    It reads no relation, and so waits for no lock.
    """
    members = "pg_publication_rel m ON m.prpubid"
    of_schemas = "pg_publication_namespace m ON m.pnpubid"
    kinds = [members, of_schemas] if conn.info.server_version >= SCHEMAS_VERSION else [members]
    hashed = " UNION ALL ".join(
        f"SELECT hashtextextended(m.oid || ' ' || m.xmin, 0) FROM publication p JOIN {kind} = p.oid" for kind in kinds
    )
    row = conn.execute(
        f"""
        WITH publication AS (SELECT oid, xmin FROM pg_publication WHERE pubname = %s)
        SELECT (SELECT sum(hashtextextended(c.oid || ' ' || n.nspname || ' ' || c.relname, 0))
            FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND NOT c.relispartition)::text,
        (SELECT sum(h) FROM (SELECT hashtextextended(p.oid || ' ' || p.xmin, 0) FROM publication p
            UNION ALL {hashed}) AS x(h))::text""",
        [publication],
    ).fetchone()
    assert row is not None
    return CatalogVersion(row[0] or "", row[1] or "")


@source_errors("reading the current snapshot")
def read_snapshot(conn: psycopg.Connection[Any]) -> str | None:
    """Return a text that stays the same until a transaction with changes ends. Return None on a standby.

    While it is the same, the catalog is. A standby has no list of the transactions that run on the primary.
    """
    query = "SELECT CASE WHEN NOT pg_is_in_recovery() THEN pg_current_snapshot()::text END"
    row = conn.execute(query).fetchone()
    return None if row is None else row[0]


@source_errors("reading the names of tables")
def read_table_names(conn: psycopg.Connection[Any], tables: Collection[TableId]) -> Mapping[TableId, QualifiedTable]:
    """Return the names of those tables that exist, published or not."""
    rows = conn.execute(
        "SELECT c.oid, n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE c.oid = ANY (%s::oid[])",
        [[int(table) for table in tables]],
    ).fetchall()
    return {TableId(oid): QualifiedTable(schema, name) for oid, schema, name in rows}


@source_errors("reading the OIDs of tables")
def read_table_ids(
    conn: psycopg.Connection[Any], tables: Collection[QualifiedTable]
) -> Mapping[QualifiedTable, TableId]:
    """Return the OIDs of those tables that exist."""
    rows = conn.execute(
        """
        SELECT n.nspname, c.relname, c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        JOIN unnest(%s::text[], %s::text[]) AS wanted (schema, name) ON n.nspname = schema AND c.relname = name""",
        [[t.schema for t in tables], [t.name for t in tables]],
    ).fetchall()
    return {QualifiedTable(schema, name): TableId(oid) for schema, name, oid in rows}


def read_table_description(
    conn: psycopg.Connection[Any], table_id: TableId, query: sql.SQL = DESCRIPTION_QUERY
) -> TableDescription:
    """Return the catalog's description of the table.

    Raise NeedsOperator ``table_missing``, or ``text_unconvertible`` for a name that UTF-8 lacks.
    """
    doing = f"reading the schema of table {int(table_id)}"
    with source_errors(doing), qualified_names(conn), naming(conn, table_id):
        row = conn.execute(query + sql.SQL(" WHERE c.oid = %s"), [int(table_id)]).fetchone()
    if row is None:
        raise table_missing(conn, table_id)
    return TableDescription.from_json(row[0])


def table_missing(conn: psycopg.Connection[Any], table_id: TableId) -> NeedsOperator:
    """Return the error of a table that does not exist."""
    return NeedsOperator(
        "table_missing",
        f"there is no table with OID {int(table_id)} in {conn.info.dbname}",
        hint="create the table, or exclude it in spec.tables",
    )


def describe_tables(conn: psycopg.Connection[Any], tables: Collection[TableId]) -> Mapping[TableId, TableDescription]:
    """Return the catalog's descriptions of those tables that exist. The error of a single one names it."""
    query = DESCRIPTION_QUERY + sql.SQL(" WHERE c.oid = ANY (%s::oid[])")
    alone = naming(conn, next(iter(tables))) if len(tables) == 1 else nullcontext()
    with source_errors("reading the schemas of tables"), qualified_names(conn), alone:
        rows = conn.execute(query, [[int(t) for t in tables]]).fetchall()
    return {(its := TableDescription.from_json(row[0])).id: its for row in rows}


@source_errors("reading the schema of a table")
def describe_without_waiting(conn: psycopg.Connection[Any], table_id: TableId) -> TableDescription:
    """Return the same as `read_table_description`. A partition that another session has locked does not count as empty.

    Raise NeedsOperator ``table_missing``.
    """
    try:
        with conn.transaction():
            conn.execute("SET LOCAL lock_timeout = '1s'")
            return read_table_description(conn, table_id)
    except Transient as error:
        if error.code != codes.LOCK_TIMEOUT:
            raise
    return read_table_description(conn, table_id, _WITHOUT_WAITS)


def read_table_descriptions(
    conn: psycopg.Connection[Any], tables: Collection[QualifiedTable]
) -> Mapping[QualifiedTable, TableDescription]:
    """Return the catalog's descriptions of those tables that exist."""
    query = DESCRIPTION_QUERY + sql.SQL(
        " JOIN unnest(%s::text[], %s::text[]) AS wanted (schema, name) ON n.nspname = schema AND c.relname = name"
    )
    names = [[t.schema for t in tables], [t.name for t in tables]]
    with source_errors("reading the schemas of tables"), qualified_names(conn):
        rows = conn.execute(query, names).fetchall()
    return {(its := TableDescription.from_json(row[0])).name: its for row in rows}


@source_errors("reading the columns of a table")
def read_newer_columns(conn: psycopg.Connection[Any], table: TableId, xid: int, slot: str) -> frozenset[int]:
    """Return the attnums whose rows in the catalog may have been written after transaction ``xid`` was committed.

    Dropped columns are included. PostgreSQL writes the row of a column again when it is renamed, retyped or dropped. A
    transaction that began before ``xid`` may alter the table after it. All below the slot's ``catalog_xmin`` had ended
    before the position that the slot has confirmed, and ``xid`` is not confirmed. IDs of transactions wrap.
    """
    query = (
        "SELECT a.attnum FROM pg_catalog.pg_attribute a"
        " LEFT JOIN pg_catalog.pg_replication_slots s ON s.slot_name = %(slot)s"
        " CROSS JOIN LATERAL unnest(ARRAY[%(xid)s, s.catalog_xmin::text::bigint]) AS oldest"
        " WHERE a.attrelid = %(table)s AND a.attnum > 0 AND ((a.xmin::text::bigint - oldest) & 4294967295) < 2147483648"
    )
    found = conn.execute(query, {"slot": slot, "xid": xid, "table": int(table)})
    return frozenset(int(attnum) for (attnum,) in found)


@source_errors("reading the columns of a table")
def read_column_names(conn: psycopg.Connection[Any], table: TableId) -> Mapping[int, str]:
    """Return the names of the table's columns by attnum, empty if there is no such table."""
    query = "SELECT attnum, attname FROM pg_attribute WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped"
    return dict(conn.execute(query, [int(table)]).fetchall())


def read_table_schema(
    conn: psycopg.Connection[Any],
    table_id: TableId,
    *,
    publication: str = "",
    columns: Collection[int] | None = None,
    exclude: Collection[str] = (),
    policy: OnUnrepresentable = OnUnrepresentable.ERROR,
    snapshot_id: SnapshotId | None = None,
) -> ReplicatedTableSchema:
    """Return the table's replicated schema as the connection's snapshot sees it.

    ``columns`` are the attnums of the column list of ``publication``, and None means all. ``exclude`` are names of
    columns to leave out. ``snapshot_id`` is the schema version, and None means 0/0, the version of a copy. Raise
    NeedsOperator ``table_missing``.
    """
    description = as_streamed(conn, publication, read_table_description(conn, table_id), columns)
    return description.schema(columns=columns, exclude=exclude, policy=policy, snapshot_id=snapshot_id)


@source_errors("reading types")
def read_type_infos(conn: psycopg.Connection[Any], oids: Iterable[int]) -> Mapping[int, TypeInfo]:
    """Return these types and the types that they refer to: a domain's base, an array's element.

    Plain base types are left out.
    """
    row = conn.execute(TYPES_QUERY, [list(oids)]).fetchone()
    assert row is not None
    return type_infos(row[0])


@contextmanager
def qualified_names(conn: psycopg.Connection[Any]) -> Iterator[None]:
    """Make PostgreSQL write expressions and types with schema names, so that they are the same in every session.

    The setting lasts until the end of the transaction, which may already be open. Levada's own sessions have it from
    their start.
    """
    if isinstance(conn, WatchedConnection) and conn.qualified:
        yield
        return
    with conn.transaction():
        conn.execute("SET LOCAL search_path = pg_catalog")
        yield


def _published(rows: Iterable[tuple[Any, ...]]) -> PublishedTable:
    group = list(rows)
    table_id, schema, name, kind, row_filter, attnums = group[0][6:]
    return PublishedTable(
        id=TableId(table_id),
        name=QualifiedTable(schema, name),
        kind=kind,
        leaves=tuple(_leaf(*row[:6]) for row in group if row[0] is not None),
        row_filter=row_filter,
        column_attnums=None if attnums is None else tuple(attnums),
    )


def _leaf(oid: int, schema: str, name: str, rows: int, blocks: int, size: int) -> Leaf:
    return Leaf(TableId(oid), QualifiedTable(schema, name), None if rows < 0 else rows, blocks, size)
