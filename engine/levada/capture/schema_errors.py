"""The errors of tables whose schema changes cannot be resolved."""

from __future__ import annotations

from collections.abc import Sequence

from levada.errors import NeedsOperator
from levada.pgoutput.messages import RelationColumn
from levada.schema import Column
from levada.schema.changes import RESERVED_PREFIX
from levada.values import QualifiedTable, quote_identifier, resync_command


def ambiguous(table: QualifiedTable) -> NeedsOperator:
    """Return the error of a table whose changed columns the stream does not identify."""
    return NeedsOperator(
        "schema_change_ambiguous",
        f"{table}: several column changes arrived together, and the stream does not identify the columns",
        hint=f"copy the table again: {resync_command(table)}. To avoid this error, let the engine's role create"
        " Levada's event trigger, which announces each change",
    )


def outdated(table: QualifiedTable) -> NeedsOperator:
    """Return the error of a table that was altered in a transaction with an older snapshot of the catalog."""
    return NeedsOperator(
        "schema_change_ambiguous",
        f"{table}: it was altered in a transaction of isolation level REPEATABLE READ or SERIALIZABLE that began before"
        " another transaction altered it. The first one reads the columns from before the second",
        hint=f"copy the table again: {resync_command(table)}. Alter tables with isolation level READ COMMITTED",
    )


def unexpected(table: QualifiedTable, error: Exception) -> NeedsOperator:
    """Return the error of a table whose description causes one that is not expected."""
    return NeedsOperator(
        "internal_error",
        f"{table}: its columns cannot be read, unexpected {type(error).__name__}",
        hint=f"the log has the traceback. Report it, and copy the table again: {resync_command(table)}",
    )


def require_usable_names(table: QualifiedTable, columns: Sequence[Column | RelationColumn]) -> None:
    """Raise NeedsOperator ``reserved_column_name`` if a column has a name that Levada reserves."""
    for column in columns:
        if column.name.startswith(RESERVED_PREFIX):
            raise _reserved(table, column.name)


def _reserved(table: QualifiedTable, column: str) -> NeedsOperator:
    return NeedsOperator(
        "reserved_column_name",
        f"{table}: the name of column {column} is reserved for Levada",
        hint=f"run ALTER TABLE {table.sql} RENAME COLUMN {quote_identifier(column)} TO NEW_NAME, then copy the table"
        f" again: {resync_command(table)}",
    )
