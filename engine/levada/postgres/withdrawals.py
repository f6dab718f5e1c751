"""Tables that a managed publication must not have, because applications would notice that they are published.

PostgreSQL refuses UPDATEs and DELETEs of published tables without a replica identity: those that lost it, and the
inheritance children of a published table, which ``ADD TABLE`` without ``ONLY`` publishes as well. It also refuses those
of a table whose row filter has a column outside of its replica identity.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final

import psycopg
from psycopg import sql

from levada.errors import LevadaError
from levada.postgres.ddl_functions import DROP_TRIGGER, TRIGGER
from levada.postgres.failures import source_errors
from levada.postgres.problems import Problem, Severity
from levada.postgres.publications import read_publication
from levada.postgres.replica_identity import FILTERS, UNCOVERED, identified
from levada.postgres.table_locks import publication_holder_named
from levada.printable import listed
from levada.values import QualifiedTable, TableId

_log = logging.getLogger(__name__)

_LOCK_TIMEOUT_S: Final = 1

# Only catalog tables: a function such as pg_partition_tree waits for a table that another session has locked.
_UNIDENTIFIED: Final = sql.SQL("""
WITH RECURSIVE tree(member, relid) AS (
    SELECT r.oid, r.prrelid FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid
    WHERE p.pubname = %s AND (p.pubupdate OR p.pubdelete)
    UNION ALL
    SELECT tree.member, i.inhrelid FROM tree JOIN pg_inherits i ON i.inhparent = tree.relid
    JOIN pg_class c ON c.oid = i.inhrelid AND c.relispartition
)
SELECT DISTINCT n.nspname, c.relname
FROM tree JOIN pg_class l ON l.oid = tree.relid AND l.relkind = 'r' AND l.relpersistence = 'p'
JOIN pg_publication_rel r ON r.oid = tree.member AND (NOT {identified} {uncovered})
JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace
ORDER BY 1, 2
""")

# Short, because a server may log each statement, and this one is executed each second.
_IN_PLACE: Final = "SELECT count(*) = 2 FROM pg_event_trigger WHERE evtname = ANY (%s) AND evtenabled = 'A'"

_INHERITED: Final = """
WITH RECURSIVE member(relid) AS (
    SELECT r.prrelid FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid WHERE p.pubname = %s
), child(relid) AS (
    SELECT i.inhrelid FROM member JOIN pg_inherits i ON i.inhparent = member.relid
    JOIN pg_class c ON c.oid = i.inhrelid AND NOT c.relispartition
    UNION
    SELECT i.inhrelid FROM child JOIN pg_inherits i ON i.inhparent = child.relid
)
SELECT n.nspname, c.relname FROM child JOIN member ON member.relid = child.relid
JOIN pg_class c ON c.oid = child.relid JOIN pg_namespace n ON n.oid = c.relnamespace ORDER BY 1, 2
"""

# A partition that is a member is streamed as its root, which decides.
_MEMBERS: Final = """
SELECT c.oid::bigint, n.nspname, c.relname
FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid
JOIN pg_class c ON c.oid = r.prrelid AND NOT c.relispartition JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE p.pubname = %s ORDER BY 2, 3
"""


@source_errors("looking for published tables without a replica identity")
def unidentified_members(
    conn: psycopg.Connection[Any], publication: str, *, always: bool = True
) -> tuple[QualifiedTable, ...]:
    """Return the members of the publication whose UPDATEs or DELETEs PostgreSQL refuses, also those of a partition.

    Without ``always``, look only if the DDL trigger, which takes such tables out itself, is not in place.
    """
    if not always and conn.execute(_IN_PLACE, [[TRIGGER, DROP_TRIGGER]]).fetchone() == (True,):
        return ()
    version = conn.info.server_version
    uncovered = sql.SQL("OR EXISTS ({})").format(UNCOVERED) if version >= FILTERS else sql.SQL("")
    query = _UNIDENTIFIED.format(identified=identified(version), uncovered=uncovered)
    rows = conn.execute(query, [publication], prepare=not always).fetchall()
    return tuple(QualifiedTable(*row) for row in rows)


@source_errors("looking for published children of tables")
def inherited_members(
    conn: psycopg.Connection[Any], publication: str, selects: Callable[[QualifiedTable], bool]
) -> tuple[QualifiedTable, ...]:
    """Return the members that are inheritance children of another member, and that the pipeline does not select."""
    rows = conn.execute(_INHERITED, [publication]).fetchall()
    return tuple(table for row in rows if not selects(table := QualifiedTable(*row)))


@source_errors("reading the members of the publication")
def read_members(conn: psycopg.Connection[Any], publication: str) -> Mapping[TableId, QualifiedTable]:
    """Return the tables that are members of the publication, without partitions and tables of its schemas."""
    rows = conn.execute(_MEMBERS, [publication]).fetchall()
    return {TableId(table): QualifiedTable(schema, name) for table, schema, name in rows}


def withdraw_statement(publication: str, table: QualifiedTable) -> str:
    """Return the SQL that takes the table, and none of its children, out of the publication."""
    statement = sql.SQL("ALTER PUBLICATION {} DROP TABLE ONLY {}")
    return statement.format(sql.Identifier(publication), sql.Identifier(table.schema, table.name)).as_string(None)


def withdraw(
    conn: psycopg.Connection[Any],
    publication: str,
    tables: Collection[QualifiedTable],
    *,
    check: Callable[[], None] = lambda: None,
    why: str = "so that its UPDATEs and DELETEs do not fail",
) -> tuple[LevadaError, ...]:
    """Take the tables out of the publication, if this role owns it. Return the errors of those that stay.

    ``check`` is called before the first change, and raises an error to prevent it. ``why`` is for the log.
    """
    if not tables or (found := read_publication(conn, publication)) is None or not found.owned:
        return ()
    check()
    errors = []
    for table in tables:
        try:
            _withdraw(conn, publication, table)
        except LevadaError as error:
            errors.append(error)
        else:
            _log.warning("took table %s out of publication %s, %s", table, publication, why)
    return tuple(errors)


def _withdraw(conn: psycopg.Connection[Any], publication: str, table: QualifiedTable) -> None:
    """Take the table out. If the server refuses that, do it without event triggers that spare a replica's sessions."""
    statement = withdraw_statement(publication, table).encode()
    doing = f"taking table {table} out of publication {publication}"
    with publication_holder_named(conn, publication), source_errors(doing):
        try:
            with conn.transaction():
                conn.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT_S}s'")
                conn.execute(statement)
        except psycopg.errors.LockNotAvailable:
            raise
        except psycopg.DatabaseError as refused:
            try:
                with conn.transaction():
                    conn.execute(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT_S}s'")
                    conn.execute("SET LOCAL session_replication_role = replica")
                    conn.execute(statement)
            except psycopg.errors.InsufficientPrivilege:
                raise refused from None


def withdrawal_problems(
    conn: psycopg.Connection[Any], publication: str, selects: Callable[[QualifiedTable], bool]
) -> Iterator[Problem]:
    """Yield a warning for the tables of a managed publication that the next run takes out of it."""
    children = inherited_members(conn, publication, selects)
    others = [table for table in read_members(conn, publication).values() if not selects(table)]
    if others := sorted(set(others).difference(children)):
        statements = "; ".join(withdraw_statement(publication, table) for table in others)
        yield Problem(
            Severity.WARNING,
            "unselected_published",
            f"publication {publication} has {listed(others)}, which spec.tables does not select. The source sends their"
            " changes for nothing. A run takes out those that the pipeline has stopped replicating, and no others",
            f"select them, or if nothing needs their changes: {statements}",
        )
    if children:
        yield Problem(
            Severity.WARNING,
            "children_published",
            f"publication {publication} has {listed(children)}, which spec.tables does not select: they were added with"
            " the table that they inherit from. A run takes them out of it",
            "; ".join(withdraw_statement(publication, child) for child in children),
        )
