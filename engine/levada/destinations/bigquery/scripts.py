"""The parts of transactions that change a served table. Pure.

Each is a few statements for `levada.destinations.bigquery.state.fenced_script`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from levada.destinations.bigquery.changes import Piece
from levada.destinations.bigquery.layout import CHANGELOG, Layout
from levada.destinations.bigquery.names import TableName, quoted
from levada.destinations.bigquery.staging import (
    ACTION,
    MOVED,
    PIECE,
    UNKNOWN,
    StagedColumns,
    former_name,
    value_name,
)
from levada.destinations.bigquery.types import from_staged
from levada.destinations.interface import TableMode

UNKNOWN_VALUE: Final = "unknown_value"
ROWS_MISSING: Final = "rows_missing"
SHADOW_LOST: Final = "shadow_lost"


def check_rows(staging: TableName, rows: int) -> str:
    """Return the check that a staging table has all its rows."""
    return f"IF (SELECT COUNT(*) FROM {staging.sql}) != {rows} THEN\nSET outcome = '{ROWS_MISSING}';\nEND IF;"


def check_version(state: TableName, version: int) -> str:
    """Return the check that the state of a shadow copy has this version."""
    found = f"SELECT 1 FROM {state.sql} WHERE version = {version}"
    return f"IF NOT EXISTS ({found}) THEN\nSET outcome = '{SHADOW_LOST}';\nEND IF;"


def truncate(table: TableName) -> str:
    """Return the statement that removes all rows."""
    return f"TRUNCATE TABLE {table.sql};"


def insert_staged(table: TableName, staging: TableName, columns: StagedColumns) -> str:
    """Return the statement that inserts all rows of a staging table."""
    names = [(quoted(c.name), from_staged(c.type, value_name(c.attnum))) for c in columns.layout.columns]
    if columns.mode is TableMode.CHANGELOG:
        names += [(quoted(name), name) for name, _, _ in CHANGELOG]
    return _insert(table, names, staging)


def insert_shadow(table: TableName, shadow: TableName, layout: Layout, mode: TableMode) -> str:
    """Return the statement that inserts all rows of a shadow copy with the same columns."""
    names = [quoted(c.name) for c in layout.columns]
    names += [quoted(name) for name, _, _ in CHANGELOG] if mode is TableMode.CHANGELOG else []
    return _insert(table, [(n, n) for n in names], shadow)


def _insert(table: TableName, columns: Sequence[tuple[str, str]], source: TableName) -> str:
    into, values = (", ".join(part) for part in zip(*columns, strict=True))
    return f"INSERT INTO {table.sql} ({into})\nSELECT {values} FROM {source.sql};"


def fill(table: TableName, constants: Mapping[str, str]) -> str:
    """Return the statement that writes constants to existing rows. They are SQL expressions by column name."""
    values = ", ".join(f"{quoted(name)} = {value}" for name, value in constants.items())
    return f"UPDATE {table.sql} SET {values} WHERE TRUE;"


def check_known(table: TableName, staging: TableName, columns: StagedColumns, piece: Piece) -> str:
    """Return the check that the rows with a piece's unknown values exist."""
    lines = [
        f"IF EXISTS (SELECT 1 FROM {staging.sql} AS S LEFT JOIN {table.sql} AS T",
        f"ON {_equal(columns, former_name)}",
        f"WHERE S.{PIECE} = {piece.number} AND S.{MOVED} IS NOT NULL AND {_absent(columns)}) THEN",
        f"SET outcome = '{UNKNOWN_VALUE}';",
        "END IF;",
    ]
    return "\n".join(lines)


def merge(table: TableName, staging: TableName, columns: StagedColumns, piece: Piece) -> str:
    """Return the statement that applies a piece: it deletes, updates and inserts rows by key."""
    layout = columns.layout
    first = layout.get(columns.key[0])
    assert first is not None
    bounds = "" if piece.low is None else f" AND T.{quoted(first.name)} BETWEEN {piece.low} AND {piece.high}"
    values = [(quoted(c.name), f"S.{value_name(c.attnum)}") for c in layout.columns]
    kept = {
        c.attnum: f"IF({_is_unknown(i)} AND NOT S.{MOVED}, T.{quoted(c.name)}, S.{value_name(c.attnum)})"
        for i, c in enumerate(layout.columns)
        if c.attnum in piece.unknown
    }
    updates = [f"{name} = {kept.get(c.attnum, value)}" for c, (name, value) in zip(layout.columns, values, strict=True)]
    lines = [
        f"MERGE INTO {table.sql} AS T USING ({_source(table, staging, columns, piece)}) AS S",
        f"ON {_equal(columns, value_name)}{bounds}",
        f"WHEN MATCHED AND S.{ACTION} = 'D' THEN DELETE",
        f"WHEN MATCHED THEN UPDATE SET {', '.join(updates)}",
        f"WHEN NOT MATCHED AND S.{ACTION} = 'U' THEN"
        f" INSERT ({', '.join(n for n, _ in values)}) VALUES ({', '.join(v for _, v in values)});",
    ]
    return "\n".join(lines)


def longest(table: TableName, staging: TableName, columns: StagedColumns) -> str:
    """Return the statements of a piece in which every column has unknown values of moved rows."""
    unknown = tuple(c.attnum for c in columns.layout.columns)
    piece = Piece(0, None, None, unknown, moved=True)
    return check_known(table, staging, columns, piece) + merge(table, staging, columns, piece)


def _source(table: TableName, staging: TableName, columns: StagedColumns, piece: Piece) -> str:
    """Return the query of a piece's rows, with unknown values of moved rows from the row with the former key."""
    selected = [f"S.{ACTION} AS {ACTION}", f"S.{UNKNOWN} AS {UNKNOWN}", f"S.{MOVED} AS {MOVED}"]
    for i, column in enumerate(columns.layout.columns):
        value = from_staged(column.type, f"S.{value_name(column.attnum)}")
        if piece.moved and column.attnum in piece.unknown:
            value = f"IF({_is_unknown(i)} AND S.{MOVED}, T.{quoted(column.name)}, {value})"
        selected.append(f"{value} AS {value_name(column.attnum)}")
    joined = f" LEFT JOIN {table.sql} AS T ON S.{MOVED} AND {_equal(columns, former_name)}" if piece.moved else ""
    return f"SELECT {', '.join(selected)} FROM {staging.sql} AS S{joined} WHERE S.{PIECE} = {piece.number}"


def _is_unknown(place: int) -> str:
    return f"IFNULL(SUBSTR(S.{UNKNOWN}, {place + 1}, 1), '0') = '1'"


def _equal(columns: StagedColumns, staged: Callable[[int], str]) -> str:
    """Return the condition that T has the key of S. ``staged`` returns the name of S's column for an attnum."""
    parts = []
    for attnum in columns.key:
        column = columns.layout.get(attnum)
        assert column is not None
        mine, theirs = f"T.{quoted(column.name)}", f"S.{staged(attnum)}"
        if staged is former_name:
            theirs = from_staged(column.type, theirs)
        if column.type == "JSON":
            # JSON has no equality.
            parts.append(f"TO_JSON_STRING({mine}) = TO_JSON_STRING({theirs})")
        elif column.type == "FLOAT64":
            # A NaN equals itself in PostgreSQL, but not in BigQuery. A sum with 0 has no negative zero.
            parts.append(f"TO_JSON_STRING({mine} + 0) = TO_JSON_STRING({theirs} + 0)")
        else:
            parts.append(f"{mine} = {theirs}")
    return " AND ".join(parts)


def _absent(columns: StagedColumns) -> str:
    column = columns.layout.get(columns.key[0])
    assert column is not None
    return f"T.{quoted(column.name)} IS NULL"
