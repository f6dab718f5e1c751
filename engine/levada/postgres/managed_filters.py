"""The row filters that a manifest has for tables of a managed publication.

A filter is SQL that a person wrote, and this role may have more rights than that person. So only PostgreSQL's own rules
for the filters of publications decide which expressions are possible: constants, columns of the row, and immutable
functions and operators that PostgreSQL brings. Nothing evaluates the text before PostgreSQL has accepted it there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final

import psycopg
from psycopg import sql

from levada.errors import LevadaError, NeedsOperator, Transient
from levada.postgres.failures import source_errors
from levada.postgres.problems import Problem, Severity
from levada.postgres.publications import create_statement, lock_members, read_publication
from levada.postgres.replica_identity import FILTERS, UNCOVERED
from levada.postgres.streamed import leaves_of
from levada.postgres.withdrawals import withdraw_statement
from levada.values import QualifiedTable, TableId

_TRIAL_LOCK_S: Final = 0.2
_IN_MANIFEST: Final = "correct where in spec.tables.include"
_PRIVILEGE: Final = "42501"

_MEMBERS: Final = """
SELECT r.prrelid::bigint, r.oid::bigint FROM pg_catalog.pg_publication p
JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid WHERE p.pubname = %s
"""
_SCHEMAS: Final = """
SELECT n.nspname FROM pg_catalog.pg_publication p JOIN pg_catalog.pg_publication_namespace s ON s.pnpubid = p.oid
JOIN pg_catalog.pg_namespace n ON n.oid = s.pnnspid WHERE p.pubname = %s
"""
_UNCOVERED: Final = sql.SQL("""
SELECT DISTINCT u.attname FROM pg_catalog.pg_publication p
JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = %s::oid
CROSS JOIN LATERAL (SELECT r.prrelid UNION SELECT relid FROM {leaves} t) AS part(id)
JOIN pg_catalog.pg_class l ON l.oid = part.id AND l.relkind = 'r'
CROSS JOIN LATERAL ({uncovered}) AS u(attname)
WHERE p.pubname = %s ORDER BY 1
""").format(leaves=leaves_of("r.prrelid"), uncovered=UNCOVERED)

# An update of a primary key is rare. An index is chosen as the identity for a column that updates change.
_UNSENT: Final = sql.SQL("""
SELECT n.nspname, c.relname, pg_catalog.array_agg(DISTINCT a.attname::text ORDER BY a.attname::text)
FROM pg_catalog.unnest(%s::bigint[]) AS t(id) JOIN pg_catalog.pg_class c ON c.oid = t.id
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN LATERAL (SELECT c.oid UNION SELECT relid FROM {leaves} p) AS part(id)
JOIN pg_catalog.pg_class l ON l.oid = part.id AND l.relkind = 'r' AND l.relreplident = 'i'
JOIN pg_catalog.pg_index i ON i.indrelid = l.oid AND i.indisreplident AND NOT i.indisprimary
JOIN pg_catalog.pg_attribute a ON a.attrelid = l.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attstorage <> 'p'
 AND a.attnum <> ALL (i.indkey)
WHERE pg_catalog.pg_relation_size(l.reltoastrelid) > 0 GROUP BY 1, 2 ORDER BY 1, 2
""").format(leaves=leaves_of("c.oid"))


@source_errors("reading the members of the publication")
def read_members(conn: psycopg.Connection[Any], publication: str) -> Mapping[TableId, int]:
    """Return the OID of each table's membership. A table gets another one whenever its filter is set."""
    rows = conn.execute(_MEMBERS, [publication]).fetchall()
    return {TableId(table): member for table, member in rows}


@source_errors("reading the schemas of the publication")
def read_schemas(conn: psycopg.Connection[Any], publication: str) -> frozenset[str]:
    """Return the schemas that the publication has as a whole. PostgreSQL ignores the row filters of their tables."""
    if conn.info.server_version < FILTERS:
        return frozenset()
    return frozenset(schema for (schema,) in conn.execute(_SCHEMAS, [publication]).fetchall())


def ignored_filter(publication: str, name: QualifiedTable) -> NeedsOperator:
    """Return the error for a row filter of a table whose schema the publication has as a whole."""
    drop = sql.SQL("ALTER PUBLICATION {} DROP TABLES IN SCHEMA {}")
    return NeedsOperator(
        "row_filter_refused",
        f"publication {publication} has schema {name.schema} as a whole, so PostgreSQL ignores where of {name}, and the"
        " table is left out",
        hint=drop.format(sql.Identifier(publication), sql.Identifier(name.schema)).as_string(None),
    )


def set_filter(
    conn: psycopg.Connection[Any],
    publication: str,
    table: tuple[TableId, QualifiedTable],
    where: str | None,
    *,
    check: Callable[[], None],
    lock_timeout_s: float,
) -> int:
    """Publish the table with this row filter, None for all rows, in one transaction. Return its membership's OID.

    ``check`` is called before the change, and raises an error to prevent it. Raise NeedsOperator
    ``row_filter_refused``, and Transient ``lock_timeout``.
    """
    check()
    name = table[1]
    with source_errors(f"setting the row filter of {name}"), conn.transaction():
        return _set_filter(conn, publication, table, where, lock_timeout_s)


def filter_problem(
    conn: psycopg.Connection[Any], publication: str, table: tuple[TableId, QualifiedTable], where: str
) -> LevadaError | None:
    """Return the error that `set_filter` would raise, None if there is none. Change nothing.

    A table that is locked is not tried. The publication may be missing.
    """
    name = table[1]
    if conn.info.server_version < FILTERS:
        return NeedsOperator(
            "row_filter_refused",
            f"spec.tables.include has where for {name}, and PostgreSQL {conn.info.server_version // 10000} has no row"
            " filters, so the table is left out",
            hint="upgrade the source to PostgreSQL 15 or newer, or remove where from the entry in spec.tables.include",
        )
    if name.schema in read_schemas(conn, publication):
        return ignored_filter(publication, name)
    try:
        with source_errors(f"trying the row filter of {name}"), conn.transaction(force_rollback=True):
            if read_publication(conn, publication) is None:
                conn.execute(create_statement(publication, ()).encode())
            _set_filter(conn, publication, table, where, _TRIAL_LOCK_S)
    except Transient:
        return None
    except LevadaError as error:
        return error
    return None


@source_errors("looking for long values of filtered tables")
def unsent_value_problems(
    conn: psycopg.Connection[Any],
    tables: Mapping[QualifiedTable, TableId],
    excluded: Callable[[QualifiedTable], AbstractSet[str]],
) -> Iterator[Problem]:
    """Yield a warning for each filtered table that an UPDATE may enter without its long (TOASTed) values.

    PostgreSQL sends an unchanged one only as a part of the identity. The table is copied again then.
    """
    for schema, table, columns in conn.execute(_UNSENT, [list(map(int, tables.values()))]).fetchall():
        name = QualifiedTable(schema, table)
        if unsent := sorted(set(columns) - excluded(name)):
            full = sql.SQL("ALTER TABLE {} REPLICA IDENTITY FULL").format(sql.Identifier(schema, table))
            yield Problem(
                Severity.WARNING,
                "row_filter_unsent_values",
                f"table {name} has where, and long values that its replica identity lacks, in {', '.join(unsent)}: an"
                " UPDATE that makes where true and leaves such a value unchanged does not send it, so the table is"
                " copied again (unknown_value)",
                f"{full.as_string(None)}, for each partition too",
            )


def _set_filter(
    conn: psycopg.Connection[Any],
    publication: str,
    table: tuple[TableId, QualifiedTable],
    where: str | None,
    lock_timeout_s: float,
) -> int:
    id_, name = table
    found = read_publication(conn, publication)
    if where is not None and found is not None and found.all_tables:
        raise NeedsOperator(
            "row_filter_refused",
            f"publication {publication} is FOR ALL TABLES, so where of {name} cannot be set, and the table is left out",
            hint="set spec.source.publication.name to a publication that Levada creates, or remove where",
        )
    conn.execute(f"SET LOCAL lock_timeout = '{lock_timeout_s * 1000:.0f}ms'")
    lock_members(conn, [name])
    before = read_members(conn, publication)
    if id_ in before:
        conn.execute(withdraw_statement(publication, name).encode())
    _add(conn, publication, name, where)
    after = read_members(conn, publication)
    if after.keys() != {*before, id_}:
        raise _refused(name, where or "", "it is not a condition alone")
    if where is not None and (found is None or found.update or found.delete):
        _require_covered(conn, publication, id_, name)
    return after[id_]


def add_statement(publication: str, name: QualifiedTable, where: str | None) -> str:
    """Return the SQL that publishes the table with this row filter, None for all rows."""
    # On lines of its own, so that a comment ends before the bracket.
    condition = "" if where is None else f" WHERE (\n{where}\n)"
    statement = sql.SQL("ALTER PUBLICATION {} ADD TABLE ONLY {}")
    table = sql.Identifier(name.schema, name.name)
    return statement.format(sql.Identifier(publication), table).as_string(None) + condition


def _add(conn: psycopg.Connection[Any], publication: str, name: QualifiedTable, where: str | None) -> None:
    try:
        # binary makes psycopg use the extended protocol, which takes one statement only.
        conn.execute(add_statement(publication, name, where).encode(), binary=True)
    except psycopg.Error as error:
        # Classes of errors in the text: syntax and names, features, values, and limits.
        if where is None or error.sqlstate is None or error.sqlstate == _PRIVILEGE:
            raise
        if error.sqlstate[:2] in ("42", "0A", "22", "54"):
            raise _refused(name, where, error.diag.message_primary or str(error)) from error
        raise


def _require_covered(conn: psycopg.Connection[Any], publication: str, id_: TableId, name: QualifiedTable) -> None:
    columns = [column for (column,) in conn.execute(_UNCOVERED, [int(id_), publication]).fetchall()]
    if columns:
        full = sql.SQL("ALTER TABLE {} REPLICA IDENTITY FULL").format(sql.Identifier(name.schema, name.name))
        raise NeedsOperator(
            "row_filter_refused",
            f"where of {name} has {', '.join(columns)}, which the replica identity of the table or of a partition"
            " lacks: PostgreSQL would refuse its UPDATEs and DELETEs",
            hint=f"use columns of the key only, or {full.as_string(None)}, for each partition too",
        )


def _refused(name: QualifiedTable, where: str, reason: str) -> NeedsOperator:
    message = f"PostgreSQL does not accept where of {name}, which is {where}: {reason}"
    return NeedsOperator("row_filter_refused", message, hint=_IN_MANIFEST)
