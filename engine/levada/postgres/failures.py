"""The mapping of PostgreSQL's errors to Levada's, by SQLSTATE and by the text of messages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import psycopg
from psycopg import pq

from levada.errors import LevadaError, LoginFailed, SlotLost, StatementRefused, Transient
from levada.postgres.pooler import HINT, REFUSED
from levada.postgres.server_names import SOURCE, ServerNames

RESYNC_ALL: Final = "levada resync MANIFEST --all"
"""The command that copies every table again. The next start then creates a lost slot again."""
_CHECK_ADDRESS: Final = "check {host}, the network, and that PostgreSQL runs there: pg_isready {address}"


@dataclass(frozen=True, slots=True)
class Failure:
    """One kind of failure: how to recognise it, and the error to raise.

    ``sqlstates`` are SQLSTATEs, or classes of them, which have two characters. ``pattern`` is searched in English
    messages, for failures without an SQLSTATE of their own. libpq, for example, returns none for a rejected login. A
    server may write its messages in another language, which only a superuser can change. So ``origins`` are pairs of an
    SQLSTATE and the routine of PostgreSQL that reports it, which no language changes.
    ``hint`` has fields of `ServerNames` in braces.

    The error is Transient or LoginFailed if the server or a person can end the cause within minutes, and
    StatementRefused if a table waits for that person. Only SlotLost ends a running engine, because what is lost does
    not come back.
    """

    code: str
    error: type[LevadaError]
    sqlstates: tuple[str, ...] = ()
    pattern: str = ""
    hint: str = ""
    origins: tuple[tuple[str, str], ...] = ()


FAILURES: Final = (
    # Recognised by text first: they share their SQLSTATE with other failures, or have none.
    Failure(
        "slot_lost",
        SlotLost,
        # The first pattern: until version 15, and at START_REPLICATION on 16 and 17. The second: all other cases.
        pattern=r"cannot read from logical replication slot|can no longer (get changes from|access) replication slot",
        hint=RESYNC_ALL,
    ),
    Failure(
        "slot_missing",
        SlotLost,
        pattern=r'replication slot ".*" does not exist',
        origins=(("42704", "ReplicationSlotAcquire"),),
        hint=RESYNC_ALL,
    ),
    # A temporary slot of a process that has just ended, or of another driver that starts at the same moment.
    Failure(
        "slot_exists",
        Transient,
        pattern=r'replication slot ".*" already exists',
        origins=(("42710", "ReplicationSlotCreate"),),
    ),
    # The address leads to a standby for a while, as in each failover.
    Failure(
        "source_standby",
        Transient,
        pattern=r"cannot be used while in recovery|during recovery$|^recovery is in progress"
        r'|cannot use replication slot ".*" for logical decoding',
        hint="nothing if a failover is under way. Otherwise set {host} to the primary, or promote the standby",
    ),
    Failure(
        "wal_level_not_logical",
        Transient,
        pattern=r'requires "?(effective_)?wal_level',
        origins=(("55000", "CheckLogicalDecodingRequirements"),),
        hint="ALTER SYSTEM SET wal_level = 'logical'; then restart PostgreSQL",
    ),
    Failure(
        "publication_missing",
        # Until version 17 the slot cannot be read any more, even after the publication is created again.
        SlotLost,
        pattern=r'\bpublication ".*" does not exist',
        origins=(("42704", "get_publication_oid"),),
        hint="levada resync MANIFEST --all",
    ),
    Failure(
        "snapshot_gone",
        Transient,
        pattern=r'could not import the requested snapshot|invalid snapshot identifier|\bsnapshot ".*" does not exist',
        origins=(("22023", "ImportSnapshot"), ("42704", "ImportSnapshot"), ("55000", "SetTransactionSnapshot")),
    ),
    Failure(
        "row_security",
        StatementRefused,
        pattern="affected by row-level security",
        origins=(("42501", "check_enable_rls"),),
        hint="ALTER ROLE {role} BYPASSRLS. Without it a copy would lack the hidden rows",
    ),
    Failure("pooler_unsupported", LoginFailed, pattern=REFUSED, hint=HINT),
    # The first of the session's settings that PostgreSQL 13 does not have.
    Failure(
        "version_unsupported",
        LoginFailed,
        pattern='configuration parameter "idle_session_timeout"',
        hint="upgrade {server} to PostgreSQL 14 or newer. Older versions do not have this parameter",
    ),
    Failure(
        "source_starting",
        Transient,
        sqlstates=("57P03",),
        pattern="the database system is|not yet accepting connections",
    ),
    Failure("source_stopping", Transient, sqlstates=("57000", "57P01", "57P02", "57P04")),
    Failure(
        "too_many_connections",
        Transient,
        pattern="too many connections for role",
        hint="ALTER ROLE {role} CONNECTION LIMIT -1, or lower spec.copy.connectionsPerTable",
    ),
    Failure(
        "too_many_connections",
        Transient,
        pattern="too many connections for database",
        hint="ALTER DATABASE {dbname} CONNECTION LIMIT -1, or lower spec.copy.connectionsPerTable",
    ),
    Failure(
        "too_many_connections",
        Transient,
        sqlstates=("53300",),
        pattern="too many clients already|remaining connection slots are reserved",
        hint="raise max_connections at {server}, or lower spec.copy.connectionsPerTable",
    ),
    Failure(
        "no_free_wal_sender",
        Transient,
        pattern='exceeds "?max_wal_senders',
        hint="ALTER SYSTEM SET max_wal_senders = 20; then restart PostgreSQL",
    ),
    Failure(
        "no_free_slot",
        Transient,
        pattern="all replication slots are in use",
        origins=(("53400", "ReplicationSlotCreate"),),
        hint="drop unused slots, or ALTER SYSTEM SET max_replication_slots = 20; then restart PostgreSQL",
    ),
    Failure(
        "replication_privilege_missing",
        LoginFailed,
        pattern="must be superuser or replication role"
        "|permission denied to start WAL sender|permission denied to use replication slots",
        origins=(("42501", "CheckSlotPermissions"), ("42501", "check_permissions")),
        hint="ALTER ROLE {role} REPLICATION",
    ),
    Failure(
        "source_tls_failed",
        LoginFailed,
        pattern="requires a valid client certificate|certificate authentication failed|alert certificate required",
        hint="set {tls}.certSecretRef to a Secret with a certificate of role {role}, which a CA of {server} has signed",
    ),
    Failure(
        "source_access_denied",
        LoginFailed,
        pattern="pg_hba.conf",
        hint="add a line for this role, database and address to pg_hba.conf of {server}, then SELECT pg_reload_conf()",
    ),
    Failure(
        "source_access_denied",
        LoginFailed,
        pattern="FATAL:  permission denied for database",
        hint="GRANT CONNECT ON DATABASE {dbname} TO {role}",
    ),
    Failure(
        "source_access_denied",
        LoginFailed,
        pattern="is not currently accepting connections",
        hint="ALTER DATABASE {dbname} ALLOW_CONNECTIONS true",
    ),
    Failure(
        "source_auth_failed",
        LoginFailed,
        pattern="is not permitted to log in",
        hint="ALTER ROLE {role} LOGIN",
    ),
    Failure(
        "source_auth_failed",
        LoginFailed,
        sqlstates=("28P01", "28000"),
        pattern='authentication failed|no password supplied|authentication method|FATAL:  role "',
        hint="check {login}, and that the role's VALID UNTIL has not passed",
    ),
    Failure(
        "source_database_missing",
        LoginFailed,
        sqlstates=("3D000",),
        pattern='FATAL:  (database "|no such database)',
        hint="check {database}",
    ),
    Failure(
        "source_tls_failed",
        LoginFailed,
        pattern="certificate|SSL error|SSL negotiation|does not support SSL|sslmode",
        hint="check {tls}: the mode, and that its CA signed the certificate of {server}",
    ),
    Failure(
        "source_silent",
        Transient,
        pattern=r"^nothing received for ",
        hint="check what is between Levada and {server}: a firewall, a NAT, a proxy, a pooler",
    ),
    Failure(
        "source_unreachable",
        Transient,
        pattern=r"no answer for host name|cannot resolve host name",
        hint="check {host}, and the resolver of this machine: getent hosts {name}",
    ),
    # The server answered, so the address is right: a library that is missing, say, or a trigger on logins.
    Failure(
        "source_access_denied",
        LoginFailed,
        # In any language: no message of libpq's own has two spaces after a colon.
        pattern=r"connection to server .* failed: [^:]*:  ",
        hint="correct what the message names at {server}. Its log has the details",
    ),
    # A statement used an object that another session dropped at the same moment.
    Failure("catalog_changed", Transient, pattern=r"^cache lookup failed for|^could not open relation with OID"),
    # The server builds each row that it sends in one buffer. No other attempt can send the row.
    Failure(
        "source_row_too_large",
        StatementRefused,
        pattern=r"^invalid memory alloc request size|^string buffer exceeds maximum allowed length",
        sqlstates=("54000",),
        hint="the server sends no row of more than 1 GB, in which a bytea may count twice. For a copy, exclude its"
        " largest column with columns.exclude in the table's TableSync, or exclude the table in spec.tables",
    ),
    # Recognised by SQLSTATE.
    Failure(
        "slot_active",
        Transient,
        sqlstates=("55006",),
        hint="another process streams from the slot. The slot is free when that process ends",
    ),
    Failure("source_unreachable", Transient, sqlstates=("08",), hint=_CHECK_ADDRESS),
    Failure(
        "statement_timeout",
        Transient,
        sqlstates=("57014",),
        hint="if this persists: ALTER ROLE {role} SET statement_timeout = 0",
    ),
    Failure(
        "session_timeout",
        Transient,
        sqlstates=("25P03", "25P04", "57P05"),
        hint="if this persists, raise the timeouts of idle sessions that the server has for the role",
    ),
    Failure(
        "lock_timeout",
        Transient,
        sqlstates=("55P03",),
        hint="if this persists, end the session that holds the lock. To find it: SELECT * FROM pg_locks WHERE granted",
    ),
    Failure("serialization_conflict", Transient, sqlstates=("40",)),
    Failure(
        "source_out_of_resources",
        Transient,
        sqlstates=("53",),
        hint="free disk space or memory at {server}, or raise the limit in the message",
    ),
    Failure(
        "text_unconvertible",
        StatementRefused,
        sqlstates=("22021", "22P05"),
        hint="find the row by the log of {server}. Its text is invalid, or UTF-8 lacks one of its characters",
    ),
    Failure("value_refused", StatementRefused, sqlstates=("22",), hint="find the expression by the log of {server}"),
    # WAL has the tablespace of each row. After ALTER DATABASE ... SET TABLESPACE, that of before cannot be decoded, nor
    # that of meanwhile once the database is moved back.
    Failure(
        "database_moved",
        Transient,
        pattern="^could not map file(node|number) ",
        hint="after ALTER DATABASE ... SET TABLESPACE: stop the engine, drop its slot at the source with"
        " pg_drop_replication_slot, then " + RESYNC_ALL,
    ),
    # Other errors of these classes last: a missing or damaged file of one table, for example.
    Failure(
        "source_internal_error",
        Transient,
        sqlstates=("XX000", "58000", "58030"),
        hint="see the log of {server}",
    ),
    Failure(
        "insufficient_privilege",
        StatementRefused,
        sqlstates=("42501",),
        hint="GRANT the privilege that the message names to the role of the source's credentials",
    ),
    Failure(
        "source_read_only",
        Transient,
        sqlstates=("25006",),
        hint="if this persists, find the setting: SHOW default_transaction_read_only; SELECT pg_is_in_recovery();",
    ),
    Failure(
        "table_missing",
        StatementRefused,
        sqlstates=("42P01", "3F000"),
        hint="create the table, or exclude it in spec.tables",
    ),
    Failure(
        "column_missing",
        StatementRefused,
        sqlstates=("42703",),
        hint="correct the row filter or the column list that names the column",
    ),
    Failure("object_missing", StatementRefused, sqlstates=("42704",), hint="create the object that the message names"),
    Failure(
        "object_exists",
        StatementRefused,
        sqlstates=("42710", "42P07", "23505"),
        hint="rename or drop the object that the message names",
    ),
)

_UNREACHABLE: Final = Failure("source_unreachable", Transient, hint=_CHECK_ADDRESS)
_DATA_EXCEPTIONS: Final = "22"
"""The class of SQLSTATEs whose messages may quote a value."""
_UNKNOWN: Final = Failure("source_error", StatementRefused, hint="correct what the message names")
_FUNCTION: Final = re.compile(r"^PL/pgSQL function (.+\)) line \d", re.MULTILINE)
_OF_FUNCTION: Final = (
    "let that function accept the statements of Levada's role. If it lacks an object that exists, it relies on the"
    " session's search_path: ALTER FUNCTION {} SET search_path = …, with the schemas of its objects"
)


def find_failure(sqlstate: str | None, message: str, routine: str = "") -> Failure:
    """Return the first failure whose pattern matches the message, or else the one that has the SQLSTATE.

    No SQLSTATE means that the connection broke or was never established. ``routine`` is the server's, for a message in
    another language.
    """
    for failure in FAILURES:
        if failure.pattern and re.search(failure.pattern, message):
            return failure
    if sqlstate is None:
        return _UNREACHABLE
    if found := next((f for f in FAILURES if (sqlstate, routine) in f.origins), None):
        return found
    return next((f for f in FAILURES if sqlstate in f.sqlstates or sqlstate[:2] in f.sqlstates), _UNKNOWN)


def source_error(
    doing: str, sqlstate: str | None, message: str, names: ServerNames = SOURCE, function: str = "", routine: str = ""
) -> LevadaError:
    """Return the error for a failure while ``doing`` something at the server that has these ``names``.

    ``message`` is the server's primary message. DETAIL and CONTEXT are left out, because they may quote a row's values,
    and so is the message of a data exception. ``function`` is that of the server in which the statement failed, and
    ``routine`` that of PostgreSQL which reports it.
    """
    failure = find_failure(sqlstate, message, routine)
    if sqlstate is not None and sqlstate.startswith(_DATA_EXCEPTIONS):
        message = f"the server refuses a value (SQLSTATE {sqlstate})"
    tail = f" (SQLSTATE {sqlstate})" if failure is _UNKNOWN else ""
    hint = names.fill(failure.hint)
    if function and issubclass(failure.error, StatementRefused):
        tail += f", in function {function} of the server"
        hint = _OF_FUNCTION.format(function)
    return failure.error(failure.code, f"{doing}: {message}{tail}", hint=hint)


def outer_function(context: str | None) -> str:
    """Return the function of the server that a statement of Levada's called, or "" if there is none.

    Levada calls none but PostgreSQL's own, so it is that of a trigger or of an event trigger. It has its schema.
    """
    return next(iter(reversed(_FUNCTION.findall(context or ""))), "")


def result_error(doing: str, result: pq.abc.PGresult, names: ServerNames = SOURCE) -> LevadaError:
    """Return the error for a failed result."""
    state = result.error_field(pq.DiagnosticField.SQLSTATE)
    text = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or result.error_message
    routine = (result.error_field(pq.DiagnosticField.SOURCE_FUNCTION) or b"").decode()
    message = text.decode("utf-8", "replace").strip()
    return source_error(doing, state.decode() if state else None, message, names, routine=routine)


@contextmanager
def source_errors(doing: str, names: ServerNames = SOURCE) -> Iterator[None]:
    """Raise psycopg's errors from the block as Levada's. Also usable as a decorator."""
    try:
        yield
    except psycopg.Error as error:
        message = error.diag.message_primary or _first_line(str(error))
        function = outer_function(error.diag.context)
        routine = error.diag.source_function or ""
        raise source_error(doing, error.sqlstate, message, names.of_session(error), function, routine) from error


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "no message")
