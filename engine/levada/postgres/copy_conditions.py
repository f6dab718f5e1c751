"""The conditions of ``copy.where``, and the values that the stream does not bring of rows that were not copied."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

import psycopg
from psycopg import sql

from levada.errors import LevadaError, NeedsOperator, Transient
from levada.postgres.failures import source_errors
from levada.postgres.problems import Problem, Severity
from levada.postgres.streamed import leaves_of
from levada.values import QualifiedTable

_TRIAL_LOCK_S: Final = 1
_PRIVILEGE: Final = "42501"

# A change leaves out a value only if it is stored out of line. The whole old row has it.
_UNCHANGED: Final = sql.SQL("""
SELECT n.nspname, c.relname, array(SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = c.oid
    AND a.attnum > 0 AND NOT a.attisdropped AND a.attstorage <> 'p' ORDER BY a.attnum)
FROM unnest(%s::text[], %s::text[]) AS wanted(schema, name)
JOIN pg_namespace n ON n.nspname = wanted.schema
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = wanted.name
WHERE EXISTS (SELECT FROM {leaves} t JOIN pg_class l ON l.oid = t.relid AND l.relreplident <> 'f')
ORDER BY 1, 2
""").format(leaves=leaves_of("c.oid"))


def condition_error(conn: psycopg.Connection[Any], table: QualifiedTable, where: str) -> LevadaError | None:
    """Return ``copy_where_refused`` if PostgreSQL does not accept the condition for the table, else None.

    The condition is planned in three places of a statement, and not executed. A text that ends its brackets and goes on
    does not fit all of them: the cast to a number is then one of a part.
    """
    # On lines of its own, so that a comment ends before the bracket.
    statement = sql.SQL("EXPLAIN SELECT CASE WHEN ({0}) THEN 1 END, - (({0})::int) FROM ONLY {1} WHERE ({0})").format(
        sql.SQL(f"\n{where}\n"),
        sql.Identifier(table.schema, table.name),
    )
    try:
        with conn.transaction(force_rollback=True):
            # binary makes psycopg use the extended protocol, which takes one statement only.
            conn.execute(statement, binary=True)
    except psycopg.Error as error:
        # Classes of errors in the text: syntax and names, features, values, and limits.
        state = error.sqlstate or ""
        if state != _PRIVILEGE and state[:2] in ("42", "0A", "22", "54"):
            return _refused(table, where, error.diag.message_primary or str(error))
        with source_errors(f"trying the condition of the copy of {table}"):
            raise
    return None


def copy_problems(
    conn: psycopg.Connection[Any], partly: Mapping[QualifiedTable, str], upserted: Collection[QualifiedTable]
) -> Iterator[Problem]:
    """Yield the problems of tables of which a copy takes a part of the rows. A table that is locked is not tried.

    ``partly`` are the conditions of these rows, empty for no row. ``upserted`` are those of them that have a row for
    each key, and so need every value of a row that was not copied.
    """
    for table, where in sorted(partly.items()):
        if not where:
            continue
        try:
            with source_errors(f"trying copy.where of {table}"), conn.transaction(force_rollback=True):
                conn.execute(f"SET LOCAL lock_timeout = '{_TRIAL_LOCK_S}s'")
                error = condition_error(conn, table, where)
        except Transient:
            continue
        if error is not None:
            yield Problem(Severity.ERROR, error.code, error.message, error.hint, spares_others=True)
    wanted = sorted(upserted)
    with source_errors("looking for values that are not streamed"):
        rows = conn.execute(_UNCHANGED, [[t.schema for t in wanted], [t.name for t in wanted]]).fetchall()
    for schema, name, columns in rows:
        table = QualifiedTable(schema, name)
        if columns:
            yield Problem(
                Severity.WARNING,
                "copy_leaves_values",
                f"a copy takes a part of the rows of {table}. An UPDATE of another row parks the table if a large value"
                f" of {', '.join(columns)} stays unchanged, because PostgreSQL does not stream it (unknown_value)",
                f"ALTER TABLE {table.sql} REPLICA IDENTITY FULL, also for each partition",
            )


def _refused(table: QualifiedTable, where: str, reason: str) -> NeedsOperator:
    return NeedsOperator(
        "copy_where_refused",
        f"PostgreSQL does not accept copy.where of {table}, which is {where}: {reason}",
        hint="correct copy.where in the table's TableSync, and then: levada check MANIFEST",
    )
