"""Publications: their coverage of the required tables, their limitations, and the SQL that extends them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql

from levada import codes
from levada.errors import NeedsOperator, Transient
from levada.postgres.failures import source_errors
from levada.postgres.replica_identity import accepted, identified
from levada.postgres.streamed import ROW_FILTER, leaves_of, streamed_names, streamed_relations
from levada.postgres.table_locks import end_autovacuums, publication_holder_named
from levada.values import QualifiedTable

_ATTEMPTS: Final = 5
_CHANGED: Final = frozenset({codes.OBJECT_EXISTS, codes.TABLE_MISSING})
_LOCK_TIMEOUT_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class CoverageReport:
    """A publication's coverage of the required tables.

    ``present`` and ``missing`` are sorted, and together are all required tables. ``unidentified`` are those missing
    tables that have no replica identity: PostgreSQL would reject their UPDATEs and DELETEs once updates are published.
    ``refusing`` are those present tables whose UPDATEs or DELETEs it rejects now. ``blocked`` are
    those missing tables that this role cannot add, the unidentified ones among them. ``manageable`` is True if the
    publication covers the required tables, or this role can extend it by all of them. ``blockers`` are the reasons why
    it cannot. ``remediation`` is the SQL that adds every missing table except the unidentified ones, with semicolons.
    ``notes`` describe limitations of the stream of present tables.
    """

    satisfied: bool
    present: tuple[QualifiedTable, ...]
    missing: tuple[QualifiedTable, ...]
    unidentified: tuple[QualifiedTable, ...]
    refusing: tuple[QualifiedTable, ...]
    blocked: tuple[QualifiedTable, ...]
    manageable: bool
    blockers: tuple[str, ...]
    remediation: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Publication:
    """A row of ``pg_publication``. ``owned`` is True if this role may change the publication."""

    name: str
    all_tables: bool
    insert: bool
    update: bool
    delete: bool
    truncate: bool
    owned: bool


@dataclass(frozen=True, slots=True)
class _Table:
    """The properties of one required table.

    ``covered_by`` is the published ancestor or the table itself, and None if it is not streamed.
    """

    name: QualifiedTable
    kind: str | None
    persistence: str
    owned: bool
    identified: bool
    accepted: bool
    covered_by: QualifiedTable | None
    as_partitions: bool
    row_filter: str | None
    column_list: bool

    @property
    def streamed(self) -> bool:
        """Return True if the table's changes are in the publication's stream, under any name."""
        return self.covered_by is not None or self.as_partitions

    @property
    def breaks(self) -> bool:
        """Return True if the table must not be published with UPDATEs and DELETEs.

        PostgreSQL would reject them, or before version 18 stream them without a part of the key.
        """
        return self.kind is not None and self.kind in "rp" and self.persistence == "p" and not self.identified


_PUBLICATION: Final = """
SELECT pubname, puballtables, pubinsert, pubupdate, pubdelete, pubtruncate,
    pg_has_role(current_user, pubowner, 'USAGE')
FROM pg_publication WHERE pubname = %s
"""

_TABLES: Final = sql.SQL("""
WITH required AS (
    SELECT r.schema, r.name, c.*
    FROM unnest(%(schemas)s::text[], %(names)s::text[]) AS r(schema, name)
    LEFT JOIN (SELECT n.nspname, c.oid, c.relname, c.relkind, c.relpersistence, c.relowner, c.relispartition
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace) c
        ON c.nspname = r.schema AND c.relname = r.name
), publication AS (
    SELECT oid, pubname FROM pg_publication WHERE pubname = %(publication)s
), published AS (
    SELECT t.relid, {row_filter} AS row_filter, {column_list} AS column_list
    FROM publication p CROSS JOIN {streamed} t
    LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = t.relid
), covering AS (
    SELECT DISTINCT ON (r.oid) r.oid AS of, p.*, n.nspname, c.relname
    FROM required r CROSS JOIN LATERAL (
        SELECT r.oid UNION SELECT relid FROM pg_partition_ancestors(r.oid) WHERE r.relispartition) AS above(relid)
    JOIN published p ON p.relid = above.relid
    JOIN pg_class c ON c.oid = p.relid JOIN pg_namespace n ON n.oid = c.relnamespace
    ORDER BY r.oid, p.relid <> r.oid
)
SELECT r.schema, r.name, r.relkind::text, coalesce(r.relpersistence::text, ''),
    coalesce(pg_has_role(current_user, r.relowner, 'USAGE'), false),
    r.oid IS NOT NULL AND NOT EXISTS (
        SELECT FROM (SELECT r.oid UNION SELECT relid FROM {leaves} t) AS leaf(id)
        -- OFFSET makes PostgreSQL look up each leaf. It would read all of pg_class for each table.
        CROSS JOIN LATERAL (SELECT FROM pg_class l WHERE l.oid = leaf.id AND NOT {identified} OFFSET 0) bare),
    r.oid IS NOT NULL AND NOT EXISTS (
        SELECT FROM (SELECT r.oid UNION SELECT relid FROM {leaves} t) AS leaf(id)
        CROSS JOIN LATERAL (SELECT FROM pg_class l WHERE l.oid = leaf.id AND NOT {accepted} OFFSET 0) refused),
    by.nspname, by.relname,
    -- A root that is not published as one table is streamed if it is a member, or if every partition is.
    by.relid IS NULL AND coalesce(r.relkind = 'p', false) AND (
        EXISTS (SELECT FROM publication p JOIN pg_publication_rel m ON m.prpubid = p.oid
            JOIN (SELECT relid FROM pg_partition_ancestors(r.oid)) a ON a.relid = m.prrelid)
        -- With publish_via_partition_root, the next partition would not be streamed until the root is a member.
        OR NOT EXISTS (SELECT FROM publication p JOIN pg_publication v ON v.oid = p.oid WHERE v.pubviaroot)
            AND (SELECT count(*) > 0 AND bool_and(l.relid IN (SELECT relid FROM published))
            FROM {leaves} l)),
    by.row_filter, coalesce(by.column_list, false)
FROM required r
LEFT JOIN covering by ON by.of = r.oid
ORDER BY r.schema, r.name
""")

# REPLICA IDENTITY of a root changes no partition. If the root gets FULL, each partition needs it, also one with a key.
_UNIDENTIFIED: Final = sql.SQL("""
WITH relation AS (
    SELECT wanted.schema, wanted.name, c.oid AS root, l.oid, l.relnamespace, l.relname, l.relreplident,
        l.relreplident = 'f' OR EXISTS (SELECT FROM pg_index i
            WHERE i.indrelid = l.oid AND i.indisvalid AND i.indimmediate
            AND (i.indisprimary AND l.relreplident = 'd' OR i.indisreplident AND l.relreplident = 'i')) AS identified
    FROM unnest(%s::text[], %s::text[]) AS wanted (schema, name)
    JOIN pg_namespace n ON n.nspname = wanted.schema
    JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = wanted.name
    CROSS JOIN LATERAL (SELECT c.oid UNION SELECT relid FROM {leaves} t) AS part(id)
    CROSS JOIN LATERAL (SELECT k.* FROM pg_class k WHERE k.oid = part.id AND k.relkind <> 'f' OFFSET 0) l
)
SELECT r.schema, r.name, n.nspname, r.relname FROM relation r JOIN pg_namespace n ON n.oid = r.relnamespace
WHERE NOT r.identified OR r.relreplident <> 'f'
    AND EXISTS (SELECT FROM relation other WHERE other.oid = r.root AND NOT other.identified)
ORDER BY r.oid = r.root, n.nspname, r.relname
""").format(leaves=leaves_of("c.oid"))

# Without these privileges LOCK TABLE is an error. The owner of a table has them, unless they are taken away. The locks
# of partitions take no more than half of the server's room for locks, which applications need.
_LOCKABLE: Final = """
WITH RECURSIVE tree(relid, relkind, member) AS (
    SELECT c.oid, c.relkind, true FROM unnest(%s::text[], %s::text[]) AS wanted (schema, name)
    JOIN pg_namespace n ON n.nspname = wanted.schema
    JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = wanted.name AND c.relkind IN ('r', 'p')
    UNION ALL
    SELECT c.oid, c.relkind, false FROM tree JOIN pg_inherits i ON i.inhparent = tree.relid AND tree.relkind = 'p'
    JOIN pg_class c ON c.oid = i.inhrelid
), room AS (
    SELECT count(*) FILTER (WHERE NOT member) * 2 < current_setting('max_locks_per_transaction')::int
        * current_setting('max_connections')::int AS enough FROM tree
)
SELECT string_agg(format('ONLY %%I.%%I', n.nspname, c.relname), ', ' ORDER BY c.oid) FILTER (WHERE member AND strong),
    string_agg(format('%%I.%%I', n.nspname, c.relname), ', ' ORDER BY c.oid)
        FILTER (WHERE member AND tree.relkind = 'p' AND enough AND has_table_privilege(c.oid, 'SELECT')),
    string_agg(format('ONLY %%I.%%I', n.nspname, c.relname), ', ' ORDER BY c.oid)
        FILTER (WHERE NOT member AND tree.relkind = 'p' AND enough AND strong)
FROM room, tree JOIN pg_class c ON c.oid = tree.relid JOIN pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN LATERAL has_table_privilege(c.oid, 'UPDATE, DELETE, TRUNCATE') AS privilege(strong)
"""


@source_errors("reading the publication")
def read_publication(conn: psycopg.Connection[Any], name: str) -> Publication | None:
    """Return the publication, or None if it does not exist."""
    row = conn.execute(_PUBLICATION, [name]).fetchone()
    return None if row is None else Publication(*row)


def inspect_coverage(
    conn: psycopg.Connection[Any], publication: str, required: AbstractSet[QualifiedTable], *, listed: bool = False
) -> CoverageReport:
    """Compare the publication with the required tables. Change nothing.

    ``listed``: they were just listed from the catalog. So one that no longer exists was renamed, moved or dropped
    since, and is not required.
    """
    found = read_publication(conn, publication)
    with source_errors("comparing the publication with the tables"):
        tables = _read_tables(conn, publication, required)
        of_server = _server_blockers(conn, publication, found)
    if listed:
        tables = [t for t in tables if t.kind is not None]
    missing = [t for t in tables if not t.streamed]
    unidentified = [t.name for t in missing if t.breaks]
    addable = [t.name for t in missing if t.name not in unidentified]
    of_tables = {t.name: reasons for t in missing if (reasons := _table_blockers(t, found))}
    blockers = [*of_server, *(reason for reasons in of_tables.values() for reason in reasons)]
    satisfied = found is not None and not missing
    return CoverageReport(
        satisfied=satisfied,
        present=tuple(t.name for t in tables if t.streamed),
        missing=tuple(t.name for t in missing),
        unidentified=tuple(unidentified),
        refusing=tuple(t.name for t in tables if t.streamed and _refuses(t, found)),
        blocked=tuple(t.name for t in missing if of_server or t.name in of_tables),
        manageable=satisfied or not blockers,
        blockers=() if satisfied else tuple(blockers),
        remediation=(_statement(publication, found, addable),) if addable or found is None else (),
        notes=() if found is None else tuple(_notes(found, [t for t in tables if t.streamed])),
    )


def ensure_coverage(
    conn: psycopg.Connection[Any],
    publication: str,
    required: AbstractSet[QualifiedTable],
    *,
    manage: bool,
    check: Callable[[], None] = lambda: None,
    lock_timeout_s: float = _LOCK_TIMEOUT_S,
    listed: bool = False,
) -> CoverageReport:
    """Create the publication or add the missing tables, if ``manage`` is True. Leave out those that cannot be added.

    Return the report from before the change. A concurrent change by another session is not an error. ``check`` is
    called before each change, and raises an error to prevent the change. A table that is locked for longer than
    ``lock_timeout_s`` seconds is an error. ``listed`` is that of `inspect_coverage`.
    """
    report = inspect_coverage(conn, publication, required, listed=listed)
    if manage:
        extend_publication(conn, publication, report, check=check, lock_timeout_s=lock_timeout_s, listed=listed)
    return report


def extend_publication(
    conn: psycopg.Connection[Any],
    publication: str,
    report: CoverageReport,
    *,
    check: Callable[[], None] = lambda: None,
    lock_timeout_s: float = _LOCK_TIMEOUT_S,
    listed: bool = False,
) -> CoverageReport:
    """Create the publication or add the tables that the report has as missing, as `ensure_coverage` does.

    Return the report from after the change.
    """
    required = {*report.present, *report.missing}
    for attempt in range(1, _ATTEMPTS + 1):
        addable = [t for t in report.missing if t not in report.blocked]
        if report.satisfied or not (addable or report.manageable):
            break
        check()
        end_autovacuums(conn, addable)
        try:
            _apply(conn, publication, addable, lock_timeout_s)
        except NeedsOperator as error:
            # Another session created the publication, or added, renamed or dropped one of the tables, since the report.
            if error.code not in _CHANGED or attempt == _ATTEMPTS:
                raise
        except Transient:
            if attempt == _ATTEMPTS:
                raise
        report = inspect_coverage(conn, publication, required, listed=listed)
    return report


def leave_out_unidentified(
    conn: psycopg.Connection[Any], publication: str, required: AbstractSet[QualifiedTable]
) -> tuple[set[QualifiedTable], tuple[QualifiedTable, ...]]:
    """Return the required tables that can be published, and those whose UPDATEs and DELETEs would fail then.

    This holds whatever operations the publication has now, because a pipeline needs all of them.
    """
    unidentified = inspect_coverage(conn, publication, required).unidentified
    return set(required).difference(unidentified), unidentified


@source_errors("reading the replica identities of partitions")
def unidentified_relations(
    conn: psycopg.Connection[Any], tables: Collection[QualifiedTable]
) -> Mapping[QualifiedTable, tuple[QualifiedTable, ...]]:
    """Return the relations that need a replica identity, by table: the table itself, and partitions.

    Partitions are first, so that no change is streamed under the root's new identity with columns of the former one.
    """
    names = [[t.schema for t in tables], [t.name for t in tables]]
    found: dict[QualifiedTable, tuple[QualifiedTable, ...]] = {}
    for root_schema, root, schema, name in conn.execute(_UNIDENTIFIED, names).fetchall() if tables else ():
        table = QualifiedTable(root_schema, root)
        found[table] = (*found.get(table, ()), QualifiedTable(schema, name))
    return {table: found.get(table, (table,)) for table in tables}


def drop_statement(publication: str) -> str:
    """Return the SQL that drops the publication, with its semicolon."""
    return sql.SQL("DROP PUBLICATION {};").format(sql.Identifier(publication)).as_string(None)


def drop_publication(conn: psycopg.Connection[Any], name: str) -> bool:
    """Drop the publication. Return False if it does not exist."""
    with publication_holder_named(conn, name), source_errors(f"dropping publication {name}"):
        found = read_publication(conn, name) is not None
        conn.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(name)))
    return found


def add_statement(publication: str, tables: Collection[QualifiedTable]) -> str:
    """Return the SQL that adds the tables, and none of their inheritance children, with its semicolon.

    For a partitioned table ``ONLY`` changes nothing.
    """
    statement = sql.SQL("ALTER PUBLICATION {} ADD TABLE {};")
    return statement.format(sql.Identifier(publication), _only(tables)).as_string(None)


def create_statement(publication: str, tables: Collection[QualifiedTable]) -> str:
    """Return the SQL that creates the publication with the tables, with its semicolon."""
    for_tables = sql.SQL(" FOR TABLE {}").format(_only(tables)) if tables else sql.SQL("")
    # A partitioned table is one table at the destination, so it is published through its root.
    statement = sql.SQL("CREATE PUBLICATION {}{} WITH (publish_via_partition_root = true);")
    return statement.format(sql.Identifier(publication), for_tables).as_string(None)


@source_errors("reading the tables of the publication")
def broken_tables(conn: psycopg.Connection[Any], publication: str) -> list[QualifiedTable]:
    """Return published tables without a replica identity, whose UPDATEs and DELETEs PostgreSQL may refuse."""
    return [t.name for t in _read_tables(conn, publication, streamed_names(conn, publication)) if t.breaks]


def _list(tables: Collection[QualifiedTable]) -> sql.Composed:
    return sql.SQL(", ").join(sql.Identifier(t.schema, t.name) for t in tables)


def _only(tables: Collection[QualifiedTable]) -> sql.Composed:
    return sql.SQL(", ").join(sql.SQL("ONLY {}").format(_list([t])) for t in tables)


def _apply(
    conn: psycopg.Connection[Any], publication: str, missing: Collection[QualifiedTable], lock_timeout_s: float
) -> None:
    """Add the tables, unless one of them has lost its replica identity meanwhile.

    The locks keep all others from losing theirs before the change is committed. From then on the DDL trigger sees it.
    """
    with source_errors(f"changing publication {publication}"), conn.transaction():
        conn.execute(f"SET LOCAL lock_timeout = '{lock_timeout_s * 1000:.0f}ms'")
        found = read_publication(conn, publication)
        if found is None or missing:
            lock_members(conn, missing)
            conn.execute(_statement(publication, found, missing).encode())
            if any(t.breaks for t in _read_tables(conn, publication, missing)):
                raise psycopg.Rollback


def lock_members(conn: psycopg.Connection[Any], tables: Collection[QualifiedTable]) -> None:
    """Keep the tables and their partitions as they are. ``ALTER PUBLICATION`` locks no partition.

    The tables are first, because the DDL trigger has to wait for a publication that waits for a table. The locks of
    partitions are not waited for, because there may be many: waits could be a part of deadlocks with applications.
    """
    names = [[t.schema for t in tables], [t.name for t in tables]]
    members, roots, branches = conn.execute(_LOCKABLE, names).fetchone() or (None, None, None)
    for relations, mode in (
        (members, "SHARE UPDATE EXCLUSIVE MODE"),
        (roots, "ACCESS SHARE MODE NOWAIT"),
        (branches, "SHARE UPDATE EXCLUSIVE MODE NOWAIT"),
    ):
        if relations is not None:
            conn.execute(f"LOCK TABLE {relations} IN {mode}".encode())


def _statement(publication: str, found: Publication | None, missing: Collection[QualifiedTable]) -> str:
    return create_statement(publication, missing) if found is None else add_statement(publication, missing)


def _read_tables(conn: psycopg.Connection[Any], publication: str, required: Iterable[QualifiedTable]) -> list[_Table]:
    if conn.info.server_version >= 150000:
        row_filter, column_list = ROW_FILTER, sql.SQL("r.prattrs IS NOT NULL")
    else:
        row_filter, column_list = sql.SQL("NULL::text"), sql.SQL("false")
    wanted = sorted(required)
    parameters = {
        "schemas": [t.schema for t in wanted],
        "names": [t.name for t in wanted],
        "publication": publication,
    }
    query = _TABLES.format(
        row_filter=row_filter,
        column_list=column_list,
        identified=identified(conn.info.server_version),
        accepted=accepted(conn.info.server_version),
        streamed=streamed_relations(conn),
        leaves=leaves_of("r.oid"),
    )
    rows = conn.execute(query, parameters).fetchall()
    return [_table(*row) for row in rows]


def _table(
    schema: str,
    name: str,
    kind: str | None,
    persistence: str,
    owned: bool,
    identified: bool,
    accepted: bool,
    by_schema: str | None,
    by_name: str | None,
    as_partitions: bool,
    row_filter: str | None,
    column_list: bool,
) -> _Table:
    covered_by = None if by_schema is None or by_name is None else QualifiedTable(by_schema, by_name)
    return _Table(
        QualifiedTable(schema, name), kind, persistence, owned, identified, accepted, covered_by, as_partitions,
        row_filter, column_list,
    )  # fmt: skip


def _server_blockers(conn: psycopg.Connection[Any], publication: str, found: Publication | None) -> list[str]:
    row = conn.execute(
        "SELECT pg_is_in_recovery(), has_database_privilege(current_database(), 'CREATE'), current_user,"
        " current_database()"
    ).fetchone()
    assert row is not None
    standby, can_create, role, database = row
    blockers = []
    if standby:
        blockers.append("the server is a standby: change the publication on its primary")
    if found is None and not can_create:
        blockers.append(f"role {role} has no CREATE privilege on database {database}")
    if found is not None and not found.owned:
        blockers.append(f"role {role} does not own publication {publication}")
    return blockers


def _table_blockers(table: _Table, found: Publication | None) -> list[str]:
    if table.kind is None:
        return [f"table {table.name} does not exist"]
    if table.kind not in "rp" or table.persistence != "p":
        return [f"{table.name} is not a permanent table: its changes are not in the WAL"]
    blockers = []
    if not table.owned:
        blockers.append(f"table {table.name} is owned by another role")
    if found is not None and found.all_tables:
        blockers.append(f"publication {found.name} is FOR ALL TABLES, but does not stream {table.name}")
    if table.breaks:
        blockers.append(f"table {table.name} has no replica identity: add a primary key, or set REPLICA IDENTITY FULL")
    return blockers


def _refuses(table: _Table, found: Publication | None) -> bool:
    """Return True if PostgreSQL rejects UPDATEs or DELETEs of the table, which is in the publication."""
    return table.breaks and not table.accepted and found is not None and (found.update or found.delete)


def _notes(publication: Publication, tables: Iterable[_Table]) -> list[str]:
    operations = {
        "insert": publication.insert,
        "update": publication.update,
        "delete": publication.delete,
        "truncate": publication.truncate,
    }
    notes = [f"publication {publication.name} does not publish {o}" for o, on in operations.items() if not on]
    for t in tables:
        if t.as_partitions:
            notes.append(f"{t.name} is streamed as its partitions: publish_via_partition_root is off")
        elif t.covered_by not in (None, t.name):
            notes.append(f"{t.name} is streamed as its root {t.covered_by}")
        elif t.kind == "p":
            notes.append(
                f"{t.name} is streamed as one table: a TRUNCATE, ATTACH or DETACH of a single partition is not streamed"
            )
        if t.row_filter is not None:
            notes.append(f"{t.name} is streamed where {t.row_filter}")
        if t.column_list:
            notes.append(f"{t.name} is streamed with a column list")
    return notes
