"""The statements that insert rows into the catalog's tables, or update them. Each gets one array for each column.

So that they fit between other statements of a pipelined transaction. A COPY would wait for an answer of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final


def _insert(table: str, columns: Mapping[str, str]) -> str:
    """Return the statement that inserts rows with these columns, each with its type."""
    arrays = ", ".join(f"%s::{kind}[]" for kind in columns.values())
    return f"INSERT INTO ducklake_{table} ({', '.join(columns)}) SELECT * FROM unnest({arrays})"


INSERT_DATA_FILES: Final = _insert(
    "data_file",
    dict.fromkeys(("data_file_id", "table_id", "begin_snapshot"), "bigint")
    | {"path": "text"}
    | dict.fromkeys(("record_count", "file_size_bytes", "footer_size", "row_id_start"), "bigint")
    | {"path_is_relative": "boolean", "file_format": "text"},
)
INSERT_DELETE_FILES: Final = _insert(
    "delete_file",
    dict.fromkeys(("delete_file_id", "table_id", "begin_snapshot", "data_file_id"), "bigint")
    | {"path": "text", "path_is_relative": "boolean", "format": "text"}
    | dict.fromkeys(("delete_count", "file_size_bytes", "footer_size"), "bigint"),
)
INSERT_FILE_STATS: Final = _insert(
    "file_column_stats",
    dict.fromkeys(("data_file_id", "table_id", "column_id", "column_size_bytes", "value_count", "null_count"), "bigint")
    | {"min_value": "text", "max_value": "text"},
)
_COLUMN_STATS: Final = {
    "table_id": "bigint", "column_id": "bigint", "contains_null": "boolean", "min_value": "text", "max_value": "text"
}  # fmt: skip
INSERT_COLUMN_STATS: Final = _insert("table_column_stats", _COLUMN_STATS)
UPDATE_COLUMN_STATS: Final = (
    "UPDATE ducklake_table_column_stats s"
    " SET contains_null = n.contains_null, min_value = n.min_value, max_value = n.max_value"
    f" FROM unnest({', '.join(f'%s::{kind}[]' for kind in _COLUMN_STATS.values())}) AS n ({', '.join(_COLUMN_STATS)})"
    " WHERE s.table_id = n.table_id AND s.column_id = n.column_id"
)
INSERT_TABLES: Final = _insert(
    "table",
    {
        "table_id": "bigint", "table_uuid": "uuid", "begin_snapshot": "bigint", "end_snapshot": "bigint",
        "schema_id": "bigint", "table_name": "text", "path": "text", "path_is_relative": "boolean",
    },
)  # fmt: skip
INSERT_TABLE_STATS: Final = _insert(
    "table_stats", dict.fromkeys(("table_id", "record_count", "next_row_id", "file_size_bytes"), "bigint")
)
INSERT_COLUMNS: Final = _insert(
    "column",
    dict.fromkeys(("column_id", "begin_snapshot", "table_id", "column_order"), "bigint")
    | dict.fromkeys(("column_name", "column_type", "initial_default", "default_value"), "text")
    | {"nulls_allowed": "boolean", "parent_column": "bigint"}
    | dict.fromkeys(("default_value_type", "default_value_dialect"), "text"),
)
