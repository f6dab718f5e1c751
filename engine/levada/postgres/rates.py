"""Rates of the source, measured in about two seconds: how fast a table is read, and how fast WAL is written."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql

from levada.postgres.connection import PostgresConnection
from levada.postgres.failures import source_errors
from levada.postgres.kept_sessions import SESSIONS
from levada.postgres.lag import inserted_wal_lsn
from levada.values import QualifiedTable

_READ_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """The size of the read that is measured.

    ``bytes`` are read of a table, by the mean size of its blocks with their TOAST. A read is given up after ``most_s``
    seconds, because the first blocks may have more TOAST than the others. One that is shorter than ``least_s`` says
    nothing.
    """

    bytes: int = 64 << 20
    most_s: float = 10.0
    least_s: float = 0.05


_READ: Final = ReadLimits()


@dataclass(frozen=True, slots=True)
class SourceRates:
    """Bytes per second. ``read`` is of a table's storage over one connection, None if the tables are too small."""

    read: float | None
    wal: float


def measure_rates(source: PostgresConnection, tables: Sequence[QualifiedTable]) -> SourceRates:
    """Measure the rates. A part of the first of ``tables`` that is no partition root is read."""
    with SESSIONS.session(source, "plan") as connection:
        begun, before = time.monotonic(), inserted_wal_lsn(connection)
        read = next((rate for table in tables if (rate := read_rate(connection, table)) is not None), None)
        time.sleep(max(0.0, _READ_S - (time.monotonic() - begun)))
        written = inserted_wal_lsn(connection) - before
        return SourceRates(read, max(0, written) / (time.monotonic() - begun))


@source_errors("measuring how fast a table is read")
def read_rate(conn: psycopg.Connection[Any], table: QualifiedTable, limits: ReadLimits = _READ) -> float | None:
    """Return the bytes per second of a part of the table, or None if it is small, locked, no plain table, or gone."""
    try:
        with conn.transaction():
            conn.execute("SET LOCAL lock_timeout = '1s'")
            conn.execute(f"SET LOCAL statement_timeout = '{limits.most_s * 1000:.0f}ms'".encode())
            return _timed_read(conn, table, limits)
    except (psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled, psycopg.errors.UndefinedTable):
        return None


def _timed_read(conn: psycopg.Connection[Any], table: QualifiedTable, limits: ReadLimits) -> float | None:
    row = conn.execute(
        """
        SELECT pg_relation_size(c.oid) / current_setting('block_size')::bigint, pg_table_size(c.oid)
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = %s AND c.relname = %s AND c.relkind = 'r'
            AND has_table_privilege(c.oid, 'SELECT')""",
        [table.schema, table.name],
    ).fetchone()
    if row is None or not row[0]:
        return None
    pages, size = row
    share = min(1.0, max(1, pages * limits.bytes // size) / pages)
    query = sql.SQL("COPY (SELECT * FROM ONLY {} WHERE ctid < {}::tid) TO STDOUT (FORMAT binary)").format(
        sql.Identifier(table.schema, table.name), sql.Literal(f"({round(pages * share)},0)")
    )
    begun = time.monotonic()
    with conn.cursor().copy(query) as copied:
        for _ in copied:
            pass
    seconds = time.monotonic() - begun
    return None if seconds < limits.least_s else float(size) * share / seconds
