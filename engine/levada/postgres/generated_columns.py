"""The generated columns that the source streams: from PostgreSQL 18 on the stored ones, if the publication says so.

The publication decides about the stream, and a copy has the same columns. So a table has its generated columns at the
destination exactly while they are streamed. One that begins to be streamed is a column that was added with values that
PostgreSQL computed. Virtual columns are never streamed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final, LiteralString

import psycopg
from psycopg import sql

from levada.errors import NeedsOperator
from levada.postgres.description import TableDescription
from levada.postgres.failures import source_errors
from levada.postgres.problems import Problem, Severity
from levada.postgres.publications import read_publication
from levada.postgres.table_locks import publication_holder_named
from levada.printable import listed
from levada.schema import ReplicatedTableSchema
from levada.values import GeneratedColumns, QualifiedTable, TableId, resync_command

PUBLISHES_GENERATED: Final = 180000
"""The first version that streams generated columns."""

_WORDS: Final[Mapping[bool, LiteralString]] = {True: "stored", False: "none"}

_STORED_COLUMNS: Final = """
SELECT attrelid::bigint, array_agg(attnum) FROM pg_attribute
WHERE attrelid = ANY (%s::bigint[]::oid[]) AND attnum > 0 AND NOT attisdropped AND attgenerated = 's' GROUP BY 1
"""

_LEFT_OUT: Final = """
SELECT n.nspname, c.relname, array_agg(a.attname::text ORDER BY a.attnum)
FROM unnest(%s::text[], %s::text[]) AS t(schema, name)
JOIN pg_namespace n ON n.nspname = t.schema
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.name
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    AND a.attgenerated <> '' AND (a.attgenerated <> 's' OR %s)
GROUP BY 1, 2 ORDER BY 1, 2
"""


@source_errors("reading the publication")
def streams_generated(conn: psycopg.Connection[Any], publication: str) -> bool:
    """Return True if tables without a column list are streamed with their stored generated columns."""
    if conn.info.server_version < PUBLISHES_GENERATED:
        return False
    row = conn.execute("SELECT pubgencols = 's' FROM pg_publication WHERE pubname = %s", [publication]).fetchone()
    return bool(row and row[0])


def as_streamed(
    conn: psycopg.Connection[Any], publication: str, description: TableDescription, columns: Collection[int] | None
) -> TableDescription:
    """Return the definition with the generated columns that are streamed. ``columns`` is the table's column list.

    A list publishes the generated columns that it has, whatever the publication's option is.
    """
    if not description.generated:
        return description
    if columns is not None:
        return description.with_generated({c.name for c in description.generated if c.attnum in columns})
    return description.with_generated() if streams_generated(conn, publication) else description


@source_errors("reading generated columns")
def streamed_columns(
    conn: psycopg.Connection[Any], publication: str, tables: Mapping[TableId, Collection[int] | None]
) -> Mapping[TableId, frozenset[int]]:
    """Return the attnums of the generated columns that are streamed, for each of the tables with its column list."""
    whole = streams_generated(conn, publication)
    stored = dict(conn.execute(_STORED_COLUMNS, [[int(t) for t in tables]]).fetchall())
    return {
        table: frozenset(a for a in stored.get(int(table), ()) if (whole if listed is None else a in listed))
        for table, listed in tables.items()
    }


def settle_generated(
    conn: psycopg.Connection[Any], publications: Iterable[str], wanted: GeneratedColumns, check: Callable[[], None]
) -> NeedsOperator | None:
    """Let managed publications stream stored generated columns, or none.

    ``check`` raises an error to prevent that. Return the error of a publication that the role may not change. Its
    tables have the columns that it streams.
    """
    if conn.info.server_version < PUBLISHES_GENERATED:
        return None
    publish = wanted is GeneratedColumns.REPLICATE
    for name in publications:
        if read_publication(conn, name) is not None and streams_generated(conn, name) != publish:
            check()
            statement = sql.SQL("ALTER PUBLICATION {} SET (publish_generated_columns = {})")
            change = statement.format(sql.Identifier(name), sql.SQL(_WORDS[publish]))
            try:
                with publication_holder_named(conn, name), source_errors(f"changing publication {name}"):
                    conn.execute(change)
            except NeedsOperator as error:
                return NeedsOperator(
                    "publication_incomplete",
                    f"publication {name} {'streams no' if publish else 'streams'} generated columns, and cannot be"
                    f" changed: {error.message}",
                    hint=f"as its owner: {change.as_string(None)}",
                )
    return None


@source_errors("looking for generated columns")
def generated_problems(
    conn: psycopg.Connection[Any], tables: Collection[QualifiedTable], wanted: GeneratedColumns
) -> Iterator[Problem]:
    """Yield a warning for each table with generated columns that are left out although the manifest asks for them."""
    if wanted is GeneratedColumns.LEAVE_OUT:
        return
    older = conn.info.server_version < PUBLISHES_GENERATED
    why = "the server streams none before PostgreSQL 18" if older else "PostgreSQL streams no virtual ones"
    remedy = "compute them at the destination" if older else "make them STORED, or compute them at the destination"
    names = [[t.schema for t in tables], [t.name for t in tables]]
    for schema, name, columns in conn.execute(_LEFT_OUT, [*names, older]).fetchall():
        yield Problem(
            Severity.WARNING,
            "generated_columns_left_out",
            f"the generated columns of table {schema}.{name} are left out ({listed(columns)}): {why}",
            remedy,
        )


def require_masked(version: ReplicatedTableSchema, generated: Collection[int]) -> None:
    """Raise NeedsOperator ``generated_column_unmasked`` for a generated column of a table with masks that has none.

    ``generated`` are the attnums of the table's generated columns. Such a column may have the value of a masked one.
    """
    if not any(c.mask is not None for c in version.columns):
        return
    clear = [c.name for c in version.columns if c.attnum in generated and c.mask is None]
    if clear:
        raise NeedsOperator(
            "generated_column_unmasked",
            f"{version.name}: the generated column {clear[0]} may have the value of a masked column, and has no mask",
            hint=f"add {', '.join(clear)} to columns.mask or columns.exclude of the table's TableSync, then:"
            f" {resync_command(version.name)}",
        )
