"""The second publication of a pipeline, of tables without a replica identity that are only appended to.

It publishes INSERT and TRUNCATE alone, so PostgreSQL refuses no UPDATE and no DELETE of its tables. A slot streams both
publications.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any, Final

import psycopg
from psycopg import sql

from levada.errors import LevadaError
from levada.postgres.catalog import PublishedTable, StreamedTable, published_tables, streamed_tables
from levada.postgres.failures import source_errors
from levada.postgres.membership import PublicationState, read_publication_state
from levada.postgres.publications import CoverageReport, lock_members, read_publication
from levada.postgres.streamed import streamed_names
from levada.postgres.withdrawals import withdraw
from levada.values import QualifiedTable, TableId

_log = logging.getLogger(__name__)

# A transaction that is older than the publication is decoded without it, until it ends.
_READABLE: Final = """
SELECT oid::bigint, pg_current_wal_lsn()::text,
    age(xmin) > age(pg_snapshot_xmin(pg_current_snapshot())::text::xid)
FROM pg_publication WHERE pubname = %s
"""


@dataclass(frozen=True, slots=True)
class PublicationNames:
    """The publications that a slot streams. ``append`` is empty without a second one."""

    main: str
    append: str = ""


@dataclass(frozen=True, slots=True)
class AppendIdentity:
    """The second publication, and an LSN from which on its slot can be read with it, empty while there is none."""

    oid: int
    lsn: str


def create_append_statement(name: str) -> str:
    """Return the SQL that creates the second publication, with its semicolon."""
    statement = sql.SQL(
        "CREATE PUBLICATION {} WITH (publish = 'insert, truncate', publish_via_partition_root = true);"
    ).format(sql.Identifier(name))
    return statement.as_string(None)


def add_append_statement(name: str, tables: Collection[QualifiedTable]) -> str:
    """Return the SQL that adds the tables to the second publication, with its semicolon."""
    listed = sql.SQL(", ").join(sql.SQL("ONLY {}").format(sql.Identifier(t.schema, t.name)) for t in sorted(tables))
    return sql.SQL("ALTER PUBLICATION {} ADD TABLE {};").format(sql.Identifier(name), listed).as_string(None)


@source_errors("creating the publication of tables without a key")
def create_append(conn: psycopg.Connection[Any], name: str, *, check: Callable[[], None]) -> None:
    """Create the second publication if it does not exist. ``check`` raises an error to prevent that."""
    if read_publication(conn, name) is None:
        check()
        conn.execute(create_append_statement(name).encode())


@source_errors("reading the publication of tables without a key")
def read_append(conn: psycopg.Connection[Any], name: str) -> AppendIdentity | None:
    """Return the second publication, None if it does not exist or publishes UPDATEs or DELETEs."""
    found = read_publication(conn, name)
    row = None if found is None or found.update or found.delete else conn.execute(_READABLE, [name]).fetchone()
    return None if row is None else AppendIdentity(row[0], row[1] if row[2] else "")


def existing_names(conn: psycopg.Connection[Any], main: str, append: str) -> PublicationNames:
    """Return the names of the publications, without the second one if it does not exist."""
    return PublicationNames(main, append if append and read_append(conn, append) is not None else "")


def with_appended(
    conn: psycopg.Connection[Any], report: CoverageReport, name: str, wanted: Collection[QualifiedTable]
) -> CoverageReport:
    """Return the report on the first publication, with the tables that the second one has or gets. Change nothing."""
    if not wanted:
        return report
    members = streamed_names(conn, name)
    missing = sorted(set(wanted) - members)
    create = () if read_publication(conn, name) is not None else (create_append_statement(name),)
    notes = (
        f"{table} has no replica identity: its INSERTs and TRUNCATEs alone are streamed" for table in sorted(wanted)
    )
    return replace(
        report,
        satisfied=report.satisfied and not missing,
        present=tuple(sorted({*report.present, *members.intersection(wanted)})),
        missing=tuple(sorted({*report.missing, *missing})),
        remediation=(*report.remediation, *create, *((add_append_statement(name, missing),) if missing else ())),
        notes=(*report.notes, *notes),
    )


def settle_members(
    conn: psycopg.Connection[Any],
    name: str,
    wanted: Collection[QualifiedTable],
    filtered: Collection[QualifiedTable],
    *,
    check: Callable[[], None],
    lock_timeout_s: float,
) -> tuple[LevadaError, ...]:
    """Let the second publication have these tables, and no others. Return the errors of those that could not be added.

    ``filtered`` are added with their row filters elsewhere. Each table is added in a transaction of its own, so that
    one that is locked holds up no other.
    """
    members, errors = streamed_names(conn, name), list[LevadaError]()
    errors += withdraw(conn, name, sorted(members.difference(wanted)), check=check)
    for table in sorted(set(wanted).difference(members, filtered)):
        check()
        try:
            with source_errors(f"adding table {table} to publication {name}"), conn.transaction():
                conn.execute(f"SET LOCAL lock_timeout = '{lock_timeout_s * 1000:.0f}ms'")
                lock_members(conn, [table])
                conn.execute(add_append_statement(name, [table]).encode())
        except LevadaError as error:
            errors.append(error)
    return tuple(errors)


def list_streamed(conn: psycopg.Connection[Any], names: PublicationNames) -> tuple[StreamedTable, ...]:
    """Return the tables that the publications stream, ordered by name. Raise NeedsOperator ``publication_missing``."""
    found = {t.id: t for t in streamed_tables(conn, names.main)}
    for table in streamed_tables(conn, names.append) if names.append else ():
        found.setdefault(table.id, table)
    return tuple(sorted(found.values(), key=lambda t: t.name))


def list_published(
    conn: psycopg.Connection[Any], names: PublicationNames, tables: Collection[TableId] | None = None
) -> tuple[PublishedTable, ...]:
    """Return the same tables as the publications stream them, or those of ``tables``. See `published_tables`."""
    found = {t.id: t for t in published_tables(conn, names.main, tables)}
    for table in published_tables(conn, names.append, tables) if names.append else ():
        found.setdefault(table.id, table)
    return tuple(sorted(found.values(), key=lambda t: t.name))


def read_state(conn: psycopg.Connection[Any], names: PublicationNames, tables: Collection[TableId]) -> PublicationState:
    """Return the state of the first publication, with the members of the second one."""
    state = read_publication_state(conn, names.main, tables)
    if not names.append:
        return state
    second = read_publication_state(conn, names.append, tables)
    return replace(
        state,
        members={**second.members, **state.members},
        partitions=state.partitions | second.partitions,
        unidentified={t: sql for t, sql in state.unidentified.items() if t not in second.members},
        appended=frozenset(second.members.keys() - state.members.keys()),
    )
