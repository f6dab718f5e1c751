"""Errors of row filters, which PostgreSQL computes for each row that it streams and for each row that is copied."""

from __future__ import annotations

from typing import Final

from psycopg import sql

from levada import codes
from levada.errors import LevadaError, StatementRefused
from levada.postgres.connection import PostgresConnection
from levada.postgres.failures import source_errors
from levada.postgres.kept_sessions import SESSIONS
from levada.postgres.replication import quote_literal
from levada.postgres.streamed import ROW_FILTER
from levada.values import QualifiedTable

_VERSION: Final = 150000
"""The first version that has row filters."""
_FILTERS: Final = sql.SQL("""
SELECT n.nspname, c.relname, {} FROM pg_catalog.pg_publication p
JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid AND r.prqual IS NOT NULL
JOIN pg_catalog.pg_class c ON c.oid = r.prrelid JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE p.pubname = %s ORDER BY n.nspname, c.relname""")


def stream_error(connection: PostgresConnection, slot: str, publication: str, error: LevadaError) -> LevadaError | None:
    """Return ``row_filter_failed`` with the tables' filters for a value that the stream refused, None for other errors.

    The server does not say whose filter fails. It reads written changes by the catalog of their time, so a corrected
    filter holds only for those that follow. No other publication of a slot can be read for the time before it existed.
    """
    if error.code != codes.VALUE_REFUSED:
        return None
    try:
        with SESSIONS.session(connection, "filters") as conn, source_errors("reading the row filters"):
            if conn.info.server_version < _VERSION:
                return None
            found = conn.execute(_FILTERS.format(ROW_FILTER), [publication]).fetchall()
    except LevadaError:
        return None
    filters = ", ".join(f"{QualifiedTable(schema, name)} WHERE {text}" for schema, name, text in found if text)
    named = f"publication {publication} has {filters}" if filters else "the publication has none any more"
    return StatementRefused(
        "row_filter_failed",
        f"{error.message}. A row filter fails for a changed row, and nothing after that row can be read: {named}",
        hint=f"correct the row filter: where in spec.tables.include, or in publication {publication} if that is"
        " External. Changes that are already written keep the former one, so then:"
        f" SELECT pg_drop_replication_slot({quote_literal(slot)}), and levada resync MANIFEST --all",
    )


def copy_error(table: QualifiedTable, row_filter: str | None, error: LevadaError) -> LevadaError | None:
    """Return ``row_filter_failed`` for a value that a copy with a row filter refused, None for other errors."""
    if error.code != codes.VALUE_REFUSED or row_filter is None:
        return None
    return StatementRefused(
        "row_filter_failed",
        f"{error.message}. The row filter of {table} fails for a row: {row_filter}",
        hint="correct the row filter: where in spec.tables.include, or in the publication if that is External; then:"
        f" levada resync MANIFEST {table.argument}",
    )
