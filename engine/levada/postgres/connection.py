"""The source's address and credentials, and the connections made with them."""

from __future__ import annotations

import logging
import select
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo
from psycopg.types.numeric import Int8BinaryDumper, Int8Dumper

from levada import codes
from levada.errors import LevadaError, LoginFailed
from levada.postgres.addresses import HostAddress, resolve_all
from levada.postgres.client_key import certificate_parameters
from levada.postgres.environment import defaults_over_environment, require_settings
from levada.postgres.failures import source_error, source_errors
from levada.postgres.pooler import refuses_options, require_server
from levada.postgres.replication import execute_replication
from levada.postgres.server_names import SOURCE, ServerNames
from levada.postgres.silence import AT_WORK, SILENCE_S, Interrupt, Silence, WatchedConnection
from levada.printable import unreadable_reason
from levada.values import Lsn, QualifiedTable, TableId, quote_identifier

__all__ = ["PostgresConnection", "QualifiedTable"]

_log = logging.getLogger(__name__)

# Without its own dumpers, a list of a subclass of int has the type that the last number needs, and no larger one fits.
for _number in (TableId, Lsn):
    for _dumper in (Int8Dumper, Int8BinaryDumper):
        psycopg.adapters.register_dumper(_number, _dumper)

_NAME_BYTES: Final = 63
"""NAMEDATALEN - 1: PostgreSQL truncates a longer application_name."""

SESSION_OPTIONS: Final = " ".join(
    f"-c {setting}"
    for setting in (
        # Values read as text must equal the stream's, whatever the defaults of the role or the database are.
        "timezone=UTC",
        "datestyle=ISO",
        "intervalstyle=postgres",
        "extra_float_digits=3",
        "bytea_output=hex",
        "lc_monetary=C",
        # The name of a type is compared with that of another server.
        "quote_all_identifiers=off",
        # Limits that are meant for an application's short statements must not end a copy or a stream.
        "statement_timeout=0",
        "idle_in_transaction_session_timeout=0",
        "idle_session_timeout=0",
        # Every role may lock its own objects for any length of time, and a statement that waits for a lock holds up
        # those of applications that come later. So this is the limit of each statement, and the caller tries again.
        "lock_timeout=1s",
        # A transaction that holds a table's lock must see in the catalog what others commit meanwhile.
        "default_transaction_isolation=read\\ committed",
        # No object that a role creates may hide one of PostgreSQL's own.
        "search_path=pg_catalog",
        # A query of the catalog has a high planned cost and reads a few rows. Compiling it takes seconds of CPU.
        "jit=off",
        # A policy that hides rows raises an error, and does not make a copy lack them silently.
        "row_security=off",
    )
)

TRANSACTION_TIMEOUT_VERSION: Final = 170_000
"""The first server version that has transaction_timeout. Older ones reject it."""

_NO_TRANSACTION_TIMEOUT: Final = "SET transaction_timeout = 0"
"""The limit would end each copy and each large transaction of the stream that takes longer, at every attempt.

The setting cannot be among the connection's options, because a server that lacks it refuses the login.
"""

_CHECK_S: Final = 15.0
"""Time limit in seconds of the second connection, which asks whether the backend of a silent one is active."""


@dataclass(frozen=True, slots=True)
class Keepalives:
    """TCP's detection of a peer that vanished, by default after a minute instead of the kernel's two hours."""

    idle_s: int = 30
    interval_s: int = 10
    count: int = 3

    def parameters(self) -> dict[str, int]:
        """Return libpq's parameters."""
        return {
            "keepalives": 1,
            "keepalives_idle": self.idle_s,
            "keepalives_interval": self.interval_s,
            "keepalives_count": self.count,
            "tcp_user_timeout": (self.idle_s + self.interval_s * self.count) * 1000,
        }


@dataclass(frozen=True, slots=True)
class PostgresConnection:
    """The source's address and login.

    It is pickled into Spark tasks, with ``password`` if that is set. In a manifest it never is.

    ``credentials`` is a folder with the files ``username`` and ``password``. They are read at each connect, so a
    rotated password needs no restart. Without ``credentials``, ``user`` and ``password`` are used, or else libpq's
    environment and password file. ``certificate`` is a folder with the files ``tls.crt`` and ``tls.key``, the
    certificate of the client. With it, ``credentials`` need no password. ``sslmode`` and ``sslrootcert`` are libpq's. A
    connection fails if nothing is
    received for ``silence_s`` seconds while the server is not at work, as `levada.postgres.silence` describes. Hints of
    failed connections name the settings by ``names``. ``session_options`` are libpq's ``options``.

    ``other_hosts`` are tried in their order after ``host``, at the same port. ``session_attrs`` is libpq's
    ``target_session_attrs``, which a server must have.

    With ``pooled``, each transaction makes its own settings, so a pooler in transaction mode may be in between. It may
    ignore or refuse the options. Otherwise such a connection fails.
    """

    host: str
    port: int
    database: str
    credentials: Path | None = None
    sslmode: str = "verify-full"
    sslrootcert: Path | None = None
    user: str | None = None
    application_name: str = "levada"
    silence_s: float = SILENCE_S
    password: str | None = field(default=None, repr=False)
    names: ServerNames = SOURCE
    connect_timeout_s: int = 15
    session_options: str = SESSION_OPTIONS
    pooled: bool = False
    certificate: Path | None = None
    other_hosts: tuple[str, ...] = ()
    session_attrs: str = "any"
    keepalives: Keepalives = Keepalives()

    @property
    def where(self) -> str:
        """``host:port/database``, for messages."""
        return f"{','.join((self.host, *self.other_hosts))}:{self.port}/{self.database}"

    def conninfo(
        self, *, replication: bool = False, application: str = "", addresses: Sequence[HostAddress] = ()
    ) -> str:
        """Return libpq's connection string. It may contain the password, so never log it.

        ``application`` is appended to the application name. ``addresses`` are those of the hosts, which libpq then does
        not resolve. Raise LoginFailed ``credentials_unreadable``.
        """
        parameters: dict[str, Any] = {
            "host": ",".join((self.host, *self.other_hosts)),
            "port": self.port,
            "dbname": self.database,
            "user": self.user,
            "password": self.password,
            "sslmode": self.sslmode,
            "sslrootcert": self.sslrootcert and str(self.sslrootcert),
            "application_name": clamp_application_name(self.application_name, application),
            "client_encoding": "UTF8",
            "connect_timeout": self.connect_timeout_s,
            "options": f"{self.session_options} {self._walsender_options()}" if replication else self.session_options,
            "target_session_attrs": self.session_attrs,
            **self.keepalives.parameters(),
        }
        if addresses:
            # libpq compares certificates with the host name, and needs one name for each address.
            hosts, numbers = zip(*addresses, strict=True)
            parameters |= {"host": ",".join(hosts), "hostaddr": ",".join(numbers)}
        if self.credentials is not None:
            needed = self.certificate is None or (self.credentials / "password").exists()
            parameters |= {"user": self._secret("username"), "password": self._secret("password") if needed else None}
        if self.certificate is not None:
            parameters |= certificate_parameters(self.certificate)
        if replication:
            parameters["replication"] = "database"
        given = {k: v for k, v in parameters.items() if v is not None}
        return make_conninfo("", **{**defaults_over_environment(), **given})

    def connect(self, *, application: str = "") -> WatchedConnection:
        """Return an SQL connection in autocommit mode, with UTC, ISO dates, exact floats and UTF-8."""
        connection = self._connect(application)
        connection.limit_s, connection.at_work = self.silence_s, self.at_work
        return connection

    def at_work(self, pid: int) -> bool:
        """Return True if the server executes a statement for the backend with this PID.

        The question goes over a second connection. Return False as well if the server is unreachable.
        """
        try:
            with self._connect("watch") as connection, source_errors(f"asking {self.where} for backend {pid}"):
                connection.limit_s = _CHECK_S
                row = connection.execute(AT_WORK, [pid]).fetchone()
        except LevadaError as error:
            _log.info("a connection is silent, and the server does not answer: %s", error.message)
            # A server that rejects a login is reachable.
            return error.code == codes.TOO_MANY_CONNECTIONS
        return row is not None and bool(row[0])

    def silence(self, interrupt: Interrupt | None = None) -> Silence:
        """Return a new measurement of the server's silence, which starts now."""
        return Silence(self.silence_s, self.at_work, interrupt)

    def _connect(self, application: str) -> WatchedConnection:
        with source_errors(f"connecting to {self.where}", self._names()):
            connection = self._log_in(application, self._addresses())
            connection.names = self._names()
            connection.doing = f"{self.application_name}:{application} at {self.where}"
            connection.limit_s = _CHECK_S
            limited = connection.info.server_version >= TRANSACTION_TIMEOUT_VERSION
            try:
                if self.session_options and (limited or not self.pooled):
                    require_server(connection, self.where, self._names(), limited=limited, pooled=self.pooled)
                if not self.pooled:
                    require_settings(connection.info.parameter_status, self.where)
            except BaseException:
                connection.close()
                raise
        return connection

    def _log_in(self, application: str, addresses: Sequence[HostAddress]) -> WatchedConnection:
        conninfo = self.conninfo(application=application, addresses=addresses)
        try:
            return WatchedConnection.connect(conninfo, autocommit=True)
        except psycopg.OperationalError as error:
            if not (self.pooled and self.session_options and refuses_options(error)):
                raise
        without = replace(self, session_options="")
        return WatchedConnection.connect(
            without.conninfo(application=application, addresses=addresses), autocommit=True
        )

    def _names(self) -> ServerNames:
        names = replace(self.names.at(self.host, self.port), dbname=quote_identifier(self.database))
        if (user := self._user()) is not None:
            names = replace(names, role=quote_identifier(user))
        if self.credentials is None:
            return names
        return replace(names, login=f"the keys username and password of Secret {self.credentials.name}")

    def _user(self) -> str | None:
        """Return the role that logs in, or None if only libpq knows it."""
        if self.credentials is None:
            return self.user
        try:
            return self._secret("username")
        except LoginFailed:
            return None

    def connect_replication(self, *, application: str = "") -> pq.abc.PGconn:
        """Return a non-blocking connection to a walsender of this database."""
        with source_errors(f"connecting to {self.where} for replication", self._names()):
            attempts: list[Sequence[HostAddress]] = [(address,) for address in self._addresses()]
            *others, last = attempts or [()]
        for addresses in others:
            try:
                return self._connect_walsender(application, addresses)
            except LevadaError as error:
                _log.info("the next address is tried: %s", error.message)
        return self._connect_walsender(application, last)

    def _connect_walsender(self, application: str, addresses: Sequence[HostAddress]) -> pq.abc.PGconn:
        with source_errors(f"connecting to {self.where} for replication", self._names()):
            conninfo = self.conninfo(replication=True, application=application, addresses=addresses)
        pg = pq.PGconn.connect_start(conninfo.encode())
        try:
            self._complete(pg)
            require_settings(lambda name: (pg.parameter_status(name.encode()) or b"").decode() or None, self.where)
            pg.nonblocking = 1
            if pg.server_version >= TRANSACTION_TIMEOUT_VERSION:
                doing = f"connecting to {self.where} for replication"
                execute_replication(pg, _NO_TRANSACTION_TIMEOUT, doing, Silence(_CHECK_S))
        except BaseException:
            pg.finish()
            raise
        return pg

    def _addresses(self) -> tuple[HostAddress, ...]:
        return resolve_all((self.host, *self.other_hosts), self.port, self.connect_timeout_s)

    def _complete(self, pg: pq.abc.PGconn) -> None:
        # PGconn.connect would hold Python's global lock, which blocks every thread, until the host answers.
        doing = f"connecting to {self.where} for replication"
        deadline = time.monotonic() + self.connect_timeout_s
        while pg.status != pq.ConnStatus.BAD:
            state = pg.connect_poll()
            if state == pq.PollingStatus.OK:
                return
            if state == pq.PollingStatus.FAILED:
                break
            poll = select.poll()
            poll.register(pg.socket, select.POLLIN if state == pq.PollingStatus.READING else select.POLLOUT)
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise source_error(doing, None, f"no answer within {self.connect_timeout_s} s", self._names())
        raise source_error(doing, None, pg.get_error_message("utf-8").strip().partition("\n")[0], self._names())

    def _walsender_options(self) -> str:
        # lock_timeout: creating a slot waits for running transactions, and no role's setting may limit that.
        # wal_sender_timeout: the server's own may be shorter than a reader is busy, and may change while the stream is
        # open. A session's own does neither, and every role may set it.
        return f"-c lock_timeout=0 -c wal_sender_timeout={self.silence_s * 1000:.0f}ms"

    def _secret(self, name: str) -> str:
        assert self.credentials is not None
        try:
            # A file of an editor for Windows may begin with a byte order mark.
            text = (self.credentials / name).read_text("utf-8-sig").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise self._unreadable(name, f"is unreadable: {unreadable_reason(error)}") from None
        if not text and name == "username":
            # libpq would log in as another role: that of PGUSER, or of the user of this process.
            raise self._unreadable(name, "is empty")
        return text

    def _unreadable(self, name: str, how: str) -> LoginFailed:
        assert self.credentials is not None
        secret = self.credentials.name
        return LoginFailed(
            "credentials_unreadable",
            f"key {name} of Secret {secret} for {self.where} {how}",
            hint=f"give Secret {secret} the keys username and password, as UTF-8 text",
        )


def clamp_application_name(name: str, suffix: str) -> str:
    """Join both with a colon, in at most 63 bytes. ``name`` is truncated rather than ``suffix``."""
    tail = f":{suffix}".encode()[:_NAME_BYTES] if suffix else b""
    head = name.encode()[: _NAME_BYTES - len(tail)]
    return head.decode("utf-8", "ignore") + tail.decode("utf-8", "ignore")
