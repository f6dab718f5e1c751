"""Checks of the source before a start: everything that would keep a pipeline from running. They change nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg
from psycopg import sql

from levada import codes
from levada.errors import LevadaError, NeedsOperator, SlotLost, Transient
from levada.postgres.catalog import list_tables, read_table_ids
from levada.postgres.column_settings import mask_errors, missing_columns, stored_type_problems
from levada.postgres.connection import PostgresConnection
from levada.postgres.copy_conditions import copy_problems
from levada.postgres.ddl import trigger_problems
from levada.postgres.failures import source_errors
from levada.postgres.generated_columns import generated_problems
from levada.postgres.identity_remedies import generated_columns, identity_remedies, publish_all_hint, upgrade_problems
from levada.postgres.kept_sessions import SESSIONS
from levada.postgres.managed_filters import filter_problem, unsent_value_problems
from levada.postgres.problems import Problem, Severity
from levada.postgres.publications import (
    CoverageReport,
    Publication,
    inspect_coverage,
    read_publication,
)
from levada.postgres.read_only import setting_owner
from levada.postgres.replica_identity import REFUSES_GENERATED
from levada.postgres.slots import SlotStatus, inspect_slot, is_foreign, passing_standby, validate_slot
from levada.postgres.storage import read_flaws
from levada.postgres.streamed import streamed_names
from levada.postgres.table_checks import (
    TableProperties,
    column_errors,
    read_table_properties,
    reading_problems,
    unselected_children,
)
from levada.postgres.table_locks import locks_named, read_table_locks, table_locked
from levada.postgres.trusted_owners import superuser_problems
from levada.postgres.unselected import NamedTables, unmatched_names
from levada.postgres.withdrawals import withdrawal_problems
from levada.postgres.written_tables import list_written_tables, written_problems
from levada.printable import listed
from levada.schema.flaws import flaw_error
from levada.schema.stored_types import ColumnChoice
from levada.values import GeneratedColumns, QualifiedTable, resync_command

_OLDEST: Final = 140000
_OLDEST_STANDBY: Final = 160000
_SMALL_RETENTION_MB: Final = 1024
_SESSIONS: Final = 6
"""Sessions of a pipeline without copies: the stream, the store, and those of periodic looks at the catalog."""
_SESSIONS_OF_COPY: Final = 2
"""Sessions of a copy that read no rows: those of its snapshot and of its locks."""


@dataclass(frozen=True, slots=True)
class PreflightRequest:
    """The pipeline's requirements. ``managed`` is True if the pipeline may change the publication."""

    slot: str
    publication: str
    managed: bool
    selects: Callable[[QualifiedTable], bool]
    copy_tables: int
    """The number of tables that are copied at the same time, each through its own slot."""
    choice: Callable[[QualifiedTable], ColumnChoice] = lambda table: ColumnChoice()
    row_filter: Callable[[QualifiedTable], str | None] = lambda table: None
    """The condition of the table's rows that the manifest selects, None for all."""
    appends: Callable[[QualifiedTable], bool] = lambda table: False
    """Returns True for a table that the second publication has if it has no replica identity."""
    copied_part: Callable[[QualifiedTable], str | None] = lambda table: None
    """The condition of the rows that a copy takes, empty for no row, None for all."""
    is_upserted: Callable[[QualifiedTable], bool] = lambda table: True
    """Returns False for a table whose mode is Changelog."""
    copy_connections: int = 1
    """The number of sessions that read one table."""
    ddl_trigger: bool = True
    """False if the manifest declines the trigger that announces schema changes."""
    named: NamedTables = field(default_factory=NamedTables)
    """The names that should be those of tables."""
    generated_columns: GeneratedColumns = GeneratedColumns.LEAVE_OUT
    """The treatment of generated columns, if the publication is managed."""


@dataclass(frozen=True, slots=True)
class _Server:
    """The server's settings and the role's rights that are checked. Sizes have the units of ``pg_settings``.

    ``role`` is the one that sessions continue as, which a setting with ``role_source`` may make another one than the
    ``login``. ``role_connections`` and ``database_connections`` are limits, negative for none, as a superuser has.
    """

    version: int
    wal_level: str
    encoding: str
    standby: bool
    role: str
    login: str
    role_source: str
    database: str
    may_replicate: bool
    max_slots: int
    used_slots: int
    max_senders: int
    used_senders: int
    max_slot_wal_keep_mb: int
    idle_slot_timeout_s: int
    role_connections: int
    database_connections: int


@dataclass(frozen=True, slots=True)
class _Room:
    """A limit of the server, and how much of it is in use. ``code`` is that of the problem if too little is free."""

    code: str
    setting: str
    most: int
    used: int


_SERVER: Final = """
SELECT current_setting('server_version_num')::int, current_setting('wal_level'), current_setting('server_encoding'),
    pg_is_in_recovery(), current_user::text, session_user::text,
    coalesce((
        SELECT CASE WHEN s.setrole = 0 THEN 'database' WHEN s.setdatabase = 0 THEN 'user' ELSE 'database user' END
        FROM pg_db_role_setting s, unnest(s.setconfig) c
        WHERE s.setrole IN (0, (SELECT oid FROM pg_roles WHERE rolname = session_user))
            AND s.setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))
            AND c LIKE 'role=%'
        ORDER BY s.setrole = 0, s.setdatabase = 0 LIMIT 1), ''), current_database()::text,
    -- Amazon RDS grants the right through a role.
    r.rolsuper OR r.rolreplication OR EXISTS (SELECT FROM pg_roles m
        WHERE m.rolname = 'rds_replication' AND pg_has_role(current_user, m.oid, 'USAGE')),
    current_setting('max_replication_slots')::int, (SELECT count(*) FROM pg_replication_slots)::int,
    current_setting('max_wal_senders')::int, (SELECT count(*) FROM pg_stat_replication)::int,
    (SELECT setting::int FROM pg_settings WHERE name = 'max_slot_wal_keep_size'),
    coalesce((SELECT setting::int FROM pg_settings WHERE name = 'idle_replication_slot_timeout'), 0),
    CASE WHEN l.rolsuper THEN -1 ELSE l.rolconnlimit END,
    CASE WHEN l.rolsuper THEN -1 ELSE (SELECT datconnlimit FROM pg_database WHERE datname = current_database()) END
FROM pg_roles r, pg_roles l WHERE r.rolname = current_user AND l.rolname = session_user
"""


def preflight(connection: PostgresConnection, request: PreflightRequest) -> tuple[Problem, ...]:
    """Return every problem, errors first. An unreachable source is returned as the only problem."""
    try:
        with SESSIONS.session(connection, "preflight") as conn, locks_named(conn, request.selects):
            return find_problems(conn, request)
    except LevadaError as error:
        passes = isinstance(error, Transient)
        return (Problem(Severity.ERROR, error.code, error.message, error.hint, passes=passes),)


@source_errors("checking the source")
def find_problems(conn: psycopg.Connection[Any], request: PreflightRequest) -> tuple[Problem, ...]:
    """Return every problem, errors first. Raise an error if the source cannot be read."""
    return tuple(sorted(_problems(conn, request), key=lambda p: p.severity is Severity.WARNING))


def refuse(problems: Iterable[Problem]) -> None:
    """Raise one error that lists all errors among the problems, if there are any."""
    errors = [p for p in problems if p.severity is Severity.ERROR]
    if len(errors) == 1:
        raise NeedsOperator(errors[0].code, errors[0].message, hint=errors[0].hint)
    if errors:
        raise NeedsOperator(
            "preflight_failed",
            f"{len(errors)} problems with the source:\n" + "\n".join(f"  - {p.message} [{p.code}]" for p in errors),
            hint="\n        ".join(p.hint for p in errors if p.hint),
        )


def _problems(conn: psycopg.Connection[Any], request: PreflightRequest) -> Iterator[Problem]:
    row = conn.execute(_SERVER).fetchone()
    assert row is not None
    server = _Server(*row)
    if server.version < _OLDEST:
        yield Problem(
            Severity.ERROR,
            "version_unsupported",
            f"the source is PostgreSQL {server.version // 10000}, and Levada needs 14 or newer",
            "upgrade the source to PostgreSQL 14 or newer",
        )
        return
    if server.standby and server.version < _OLDEST_STANDBY:
        yield Problem(
            Severity.ERROR,
            "standby_unsupported",
            f"the source is a standby of PostgreSQL {server.version // 10000}. A standby can be a source since version"
            f" {_OLDEST_STANDBY // 10000}",
            "set spec.source.host to the primary",
            passes=True,
        )
        return
    slot = inspect_slot(conn, request.slot)
    publication = read_publication(conn, request.publication)
    streamed = streamed_names(conn, request.publication)
    possible = list_tables(conn)
    selected = {t for t in (*possible, *streamed) if request.selects(t)}
    yield from written_problems(list_written_tables(conn) & streamed & selected, request.publication)
    yield from _server_problems(server)
    yield from _connection_problems(server, request)
    yield from _slot_problems(server, slot, request)
    yield from trigger_problems(conn, declined=not request.ddl_trigger)
    if publication is not None:
        yield from _operation_problems(conn, publication)
        if request.managed:
            yield from withdrawal_problems(conn, request.publication, request.selects)
    wanted = selected if request.managed or publication is None else selected & streamed
    if request.managed or publication is None:
        report = inspect_coverage(conn, request.publication, wanted, listed=True)
        wanted = {*report.present, *report.missing}
        appended = {t for t in report.unidentified if request.managed and request.appends(t)}
        yield from _identity_problems(conn, set(report.unidentified) - appended, request)
        if report.unidentified:
            wanted = wanted.difference(report.unidentified)
        # The SQL of the others would publish all rows of these.
        filtered = {t: where for t in wanted if request.managed and (where := request.row_filter(t)) is not None}
        if report.unidentified or filtered:
            report = inspect_coverage(conn, request.publication, wanted.difference(filtered), listed=True)
        wanted = wanted | appended
        yield from _filter_problems(conn, filtered, request, streamed)
        yield from _coverage_problems(report, publication, request)
    yield from unmatched_names(conn, request.named, [*possible, *streamed], request.selects)
    if not wanted and (request.managed or publication is not None):
        yield Problem(
            Severity.ERROR,
            "no_tables_selected",
            f"spec.tables selects no table of database {server.database}",
            f"create a table, or correct spec.tables. {_replicable(possible)}",
            # The start decides: the tables may have been renamed or dropped.
            spares_others=True,
        )
    yield from unselected_children(conn, wanted)
    yield from upgrade_problems(conn, wanted & streamed)
    yield from superuser_problems(conn, wanted, server.role)
    if request.managed:
        yield from generated_problems(conn, wanted, request.generated_columns)
    if locks := [lock for lock in read_table_locks(conn) if lock.exclusive and lock.root in wanted]:
        yield _warning(table_locked("tables are published and copied once their locks end", locks))
    choices = {table: request.choice(table) for table in wanted}
    for table in read_table_properties(conn, wanted):
        yield from reading_problems(table, choices[table.name].excluded, server.role)
        yield from _table_problems(conn, table, publication, table.name in streamed)
        yield from map(_warning, column_errors(table, choices[table.name].excluded))
    for name, missing in missing_columns(conn, {table: choice.excluded for table, choice in choices.items()}):
        message = f"columns.exclude of table {name} has {', '.join(missing)}, which is no column"
        hint = "if the column was renamed, write its new name into columns.exclude of the table's TableSync"
        yield Problem(Severity.WARNING, "excluded_column_missing", message, hint)
    yield from map(_warning, mask_errors(conn, {table: choice.masks for table, choice in choices.items()}))
    yield from stored_type_problems(conn, {table: choice.types for table, choice in choices.items()})
    partly = {table: where for table in wanted if (where := request.copied_part(table)) is not None}
    if partly:
        yield from copy_problems(conn, partly, [table for table in partly if request.is_upserted(table)])
    for name, flaws in sorted(read_flaws(conn, request.publication, wanted).items()):
        # It concerns this table only, whose copy is refused, so the others can start.
        if (error := flaw_error(name, flaws)) is not None:
            yield _warning(error)


def _replicable(possible: Sequence[QualifiedTable]) -> str:
    if not possible:
        return "The database has no table that can be replicated"
    return f"These can be replicated: {listed(possible)}"


def _server_problems(server: _Server) -> Iterator[Problem]:
    if server.wal_level != "logical":
        yield Problem(
            Severity.ERROR,
            "wal_level_not_logical",
            f"wal_level is {server.wal_level}, so changes cannot be decoded",
            "ALTER SYSTEM SET wal_level = 'logical'; then restart PostgreSQL",
        )
    if not server.may_replicate:
        continued, other = "", ""
        if server.role != server.login:
            whose, reset = setting_owner("role", server.role_source, server.login, server.database)
            continued = f". Sessions of role {server.login} continue as that one because of the setting role of {whose}"
            other = f", or {reset}"
        yield Problem(
            Severity.ERROR,
            "replication_privilege_missing",
            f"role {server.role} has no REPLICATION privilege{continued}",
            _sql("ALTER ROLE {} REPLICATION", server.role) + other,
        )
    if server.encoding == "SQL_ASCII":
        yield Problem(
            Severity.WARNING,
            "encoding_sql_ascii",
            f"database {server.database} has the encoding SQL_ASCII, which checks no text: one that is not UTF-8 parks"
            " its table, or becomes NULL under onUnrepresentable",
            'move the data to a database with encoding UTF8, or set spec.onUnrepresentable: "Null"',
        )
    if 0 <= server.max_slot_wal_keep_mb < _SMALL_RETENTION_MB:
        yield Problem(
            Severity.WARNING,
            "slot_retention_small",
            f"max_slot_wal_keep_size is {server.max_slot_wal_keep_mb} MB: a short interruption may lose the slot",
            "ALTER SYSTEM SET max_slot_wal_keep_size = '10GB'; SELECT pg_reload_conf()",
        )
    if server.idle_slot_timeout_s > 0:
        yield Problem(
            Severity.WARNING,
            "slot_idle_timeout",
            f"idle_replication_slot_timeout is {server.idle_slot_timeout_s} s: a pipeline that is suspended for longer"
            " loses its slot",
            "ALTER SYSTEM SET idle_replication_slot_timeout = 0; SELECT pg_reload_conf()",
        )


def _connection_problems(server: _Server, request: PreflightRequest) -> Iterator[Problem]:
    """Yield a problem if a limit of the role or of the database has no room for all sessions. Copies wait then."""
    wanted = _SESSIONS + request.copy_tables * (_SESSIONS_OF_COPY + request.copy_connections)
    for kind, name, limit in (
        ("ROLE", server.login, server.role_connections),
        ("DATABASE", server.database, server.database_connections),
    ):
        if 0 <= limit < wanted:
            yield Problem(
                Severity.WARNING,
                "too_many_connections",
                f"{kind.lower()} {name} has a CONNECTION LIMIT of {limit}, and Levada opens up to {wanted} sessions:"
                f" {_SESSIONS}, and {_SESSIONS_OF_COPY + request.copy_connections} for each of {request.copy_tables}"
                " concurrent copies",
                _sql("ALTER " + kind + " {} CONNECTION LIMIT " + str(wanted), name)
                + ", or lower spec.copy.maxConcurrentTables or spec.copy.connectionsPerTable",
            )


def _slot_problems(server: _Server, slot: SlotStatus | None, request: PreflightRequest) -> Iterator[Problem]:
    if slot is not None and slot.synced:
        error = passing_standby(slot.name)
        yield Problem(Severity.ERROR, error.code, error.message, error.hint, passes=True)
    elif slot is not None:
        try:
            validate_slot(slot, server.database)
        except LevadaError as error:
            severity = Severity.WARNING if isinstance(error, SlotLost) else Severity.ERROR
            yield Problem(severity, error.code, error.message, error.hint)
        if slot.active and not is_foreign(slot, server.database):
            yield Problem(
                Severity.WARNING,
                "slot_active",
                f"slot {slot.name} is in use by PID {slot.active_pid}. If that is an engine of this pipeline, a run"
                " ends it",
                f"SELECT pg_terminate_backend({slot.active_pid})",
            )
    streaming = slot is not None and slot.active
    slots = _Room("no_free_slot", "max_replication_slots", server.max_slots, server.used_slots)
    senders = _Room("no_free_wal_sender", "max_wal_senders", server.max_senders, server.used_senders)
    yield from _room_problems(slots, int(slot is None), request.copy_tables)
    yield from _room_problems(senders, int(not streaming), request.copy_tables)


def _room_problems(room: _Room, main: int, copies: int) -> Iterator[Problem]:
    """Yield a problem unless there is room for the stream and all copies.

    It is an error if there is no room for the stream and one copy. Otherwise copies wait for each other. Copies of a
    pipeline that has tables wait until there is room.
    """
    wanted, free = main + copies, room.most - room.used
    if free >= wanted:
        return
    unused = "drop unused slots, or run " if room.code == codes.NO_FREE_SLOT else ""
    yield Problem(
        Severity.WARNING if free > main else Severity.ERROR,
        room.code,
        f"{free} of {room.most} {room.setting} are free, and {wanted} are needed:"
        f" {main} for the stream and {copies} for concurrent copies",
        f"{unused}ALTER SYSTEM SET {room.setting} = {room.used + wanted}; then restart PostgreSQL."
        " Or lower spec.copy.maxConcurrentTables",
        spares_others=free >= main,
        passes=True,
    )


def _operation_problems(conn: psycopg.Connection[Any], publication: Publication) -> Iterator[Problem]:
    rows = {"insert": publication.insert, "update": publication.update, "delete": publication.delete}
    lacking = ", ".join(name for name, published in rows.items() if not published)
    if lacking:
        message = f"publication {publication.name} does not publish {lacking}, so such changes would be lost"
        yield Problem(Severity.ERROR, "publication_operations", message, publish_all_hint(conn, publication.name))
    if not publication.truncate:
        message = f"publication {publication.name} does not publish truncate, so rows stay after a TRUNCATE"
        yield Problem(Severity.WARNING, "publication_operations", message, publish_all_hint(conn, publication.name))


def _warning(error: LevadaError) -> Problem:
    """Return the problem of a single table that is not copied now. The others can start."""
    return Problem(Severity.WARNING, error.code, error.message, error.hint)


def _identity_problems(
    conn: psycopg.Connection[Any], unidentified: Iterable[QualifiedTable], request: PreflightRequest
) -> Iterator[Problem]:
    left_out = sorted(unidentified) if request.managed else []
    remedies, generated = identity_remedies(conn, left_out), generated_columns(conn, left_out)
    for table in left_out:
        lacks, or_else = "has no replica identity", ""
        if generated.get(table):
            lacks = f"{lacks} without a generated column"
            or_else = ", or stream them without a part of the key"
        yield Problem(
            Severity.WARNING,
            "identity_missing",
            f"table {table} is left out, because it {lacks}: PostgreSQL would reject its UPDATEs and DELETEs once it is"
            f" published{or_else}",
            f"{remedies[table]}, or exclude it in spec.tables",
        )


def _coverage_problems(
    report: CoverageReport, publication: Publication | None, request: PreflightRequest
) -> Iterator[Problem]:
    hint = " ".join(report.remediation)
    if report.satisfied:
        return
    if publication is None and not request.managed:
        yield Problem(Severity.ERROR, "publication_missing", f"there is no publication {request.publication}", hint)
    elif not report.manageable:
        # A running engine creates the publication of the tables that can be added, and so does a start.
        missing = publication is None and report.blocked == report.missing
        code = codes.PUBLICATION_MISSING if missing else codes.PUBLICATION_INCOMPLETE
        lacking = "does not exist and cannot be created" if missing else "lacks tables that cannot be added"
        for blocker in report.blockers:
            message = f"publication {request.publication} {lacking}: {blocker}"
            yield Problem(Severity.ERROR, code, message, hint, spares_others=not missing)


def _filter_problems(
    conn: psycopg.Connection[Any],
    filtered: Mapping[QualifiedTable, str],
    request: PreflightRequest,
    streamed: AbstractSet[QualifiedTable],
) -> Iterator[Problem]:
    ids = read_table_ids(conn, filtered)
    for name, id_ in ids.items():
        error = filter_problem(conn, request.publication, (id_, name), filtered[name])
        # The filter of a streamed table may be in place, where this role may no longer change it.
        if error is not None and (error.code == codes.ROW_FILTER_REFUSED or name not in streamed):
            yield Problem(Severity.ERROR, error.code, error.message, error.hint, spares_others=True)
    yield from unsent_value_problems(conn, ids, lambda table: request.choice(table).excluded)


def _table_problems(
    conn: psycopg.Connection[Any], table: TableProperties, publication: Publication | None, streamed: bool
) -> Iterator[Problem]:
    name = _sql("{}.{}", table.name.schema, table.name.name)
    changed = streamed and publication is not None and (publication.update or publication.delete)
    if table.generated_identity and changed:
        refused = conn.info.server_version >= REFUSES_GENERATED
        yield Problem(
            Severity.WARNING,
            "identity_missing",
            f"the replica identity of table {table.name} has a generated column, which is not streamed: "
            + ("PostgreSQL rejects its UPDATEs and DELETEs while it is published" if refused else "it is not copied"),
            identity_remedies(conn, [table.name])[table.name],
        )
    elif not table.has_identity and changed:
        yield Problem(
            Severity.WARNING,
            "identity_missing",
            f"table {table.name} has no replica identity: PostgreSQL rejects its UPDATEs and DELETEs while it is"
            " published. Its INSERTs are written to a changelog",
            identity_remedies(conn, [table.name])[table.name],
        )
    elif table.has_identity and not table.has_key:
        yield Problem(
            Severity.WARNING,
            "key_missing",
            f"table {table.name} has no primary key, so its rows cannot be upserted. It is written to a changelog",
            f"ALTER TABLE {name} ADD PRIMARY KEY (…); then, if it was copied before: {resync_command(table.name)}",
        )


def _sql(template: str, *names: str) -> str:
    return sql.SQL(template).format(*map(sql.Identifier, names)).as_string(None)
