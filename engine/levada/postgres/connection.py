"""The source's address and credentials, and the connections made with them."""

from __future__ import annotations

import logging
import select
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from psycopg import pq
from psycopg.conninfo import make_conninfo

from levada.errors import LevadaError, LoginFailed
from levada.postgres.addresses import resolve
from levada.postgres.failures import source_error, source_errors
from levada.postgres.replication import execute_replication
from levada.postgres.server_names import SOURCE, ServerNames
from levada.postgres.silence import AT_WORK, SILENCE_S, Interrupt, Silence, WatchedConnection
from levada.printable import unreadable_reason
from levada.values import QualifiedTable

__all__ = ["PostgresConnection", "QualifiedTable"]

_log = logging.getLogger(__name__)

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
        # Limits that are meant for an application's short statements must not end a copy or a stream.
        "statement_timeout=0",
        "idle_in_transaction_session_timeout=0",
        "idle_session_timeout=0",
        # Every role may lock its own tables for any length of time.
        "lock_timeout=60s",
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

_KEEPALIVE: Final = {
    "keepalives": 1,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
"""A peer that vanished is detected after a minute instead of the kernel's two hours."""


@dataclass(frozen=True, slots=True)
class PostgresConnection:
    """The source's address and login.

    It is pickled into Spark tasks, with ``password`` if that is set. In a manifest it never is.

    ``credentials`` is a folder with the files ``username`` and ``password``. They are read at each connect, so a
    rotated password needs no restart. Without ``credentials``, ``user`` and ``password`` are used, or else libpq's
    environment and password file. ``sslmode`` and ``sslrootcert`` are libpq's. A connection fails if nothing is
    received for ``silence_s`` seconds while the server is not at work, as `levada.postgres.silence` describes. Hints of
    failed connections name the settings by ``names``. ``session_options`` are libpq's ``options``. A pooler may ignore
    them.
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

    @property
    def where(self) -> str:
        """``host:port/database``, for messages."""
        return f"{self.host}:{self.port}/{self.database}"

    def conninfo(self, *, replication: bool = False, application: str = "", addresses: Sequence[str] = ()) -> str:
        """Return libpq's connection string. It may contain the password, so never log it.

        ``application`` is appended to the application name. ``addresses`` are those of the host, which libpq then does
        not resolve. Raise LoginFailed ``credentials_unreadable``.
        """
        parameters: dict[str, Any] = {
            "host": self.host,
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
            **_KEEPALIVE,
        }
        if addresses:
            # libpq compares certificates with the host name, and needs one name for each address.
            parameters |= {"host": ",".join([self.host] * len(addresses)), "hostaddr": ",".join(addresses)}
        if self.credentials is not None:
            parameters |= {"user": self._secret("username"), "password": self._secret("password")}
        if replication:
            parameters["replication"] = "database"
        return make_conninfo("", **{k: v for k, v in parameters.items() if v is not None})

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
            return error.code == "too_many_connections"
        return row is not None and bool(row[0])

    def silence(self, interrupt: Interrupt | None = None) -> Silence:
        """Return a new measurement of the server's silence, which starts now."""
        return Silence(self.silence_s, self.at_work, interrupt)

    def _connect(self, application: str) -> WatchedConnection:
        with source_errors(f"connecting to {self.where}", self._names()):
            conninfo = self.conninfo(application=application, addresses=self._addresses())
            connection = WatchedConnection.connect(conninfo, autocommit=True)
            connection.doing = f"{self.application_name}:{application} at {self.where}"
            if connection.info.server_version >= TRANSACTION_TIMEOUT_VERSION:
                connection.limit_s = _CHECK_S
                try:
                    connection.execute(_NO_TRANSACTION_TIMEOUT)
                except BaseException:
                    connection.close()
                    raise
        return connection

    def _names(self) -> ServerNames:
        names = self.names.at(self.host, self.port)
        if self.credentials is None:
            return names
        return replace(names, login=f"the keys username and password of Secret {self.credentials.name}")

    def connect_replication(self, *, application: str = "") -> pq.abc.PGconn:
        """Return a non-blocking connection to a walsender of this database."""
        with source_errors(f"connecting to {self.where} for replication", self._names()):
            conninfo = self.conninfo(replication=True, application=application, addresses=self._addresses())
        pg = pq.PGconn.connect_start(conninfo.encode())
        try:
            self._complete(pg)
            pg.nonblocking = 1
            if pg.server_version >= TRANSACTION_TIMEOUT_VERSION:
                doing = f"connecting to {self.where} for replication"
                execute_replication(pg, _NO_TRANSACTION_TIMEOUT, doing, Silence(_CHECK_S))
        except BaseException:
            pg.finish()
            raise
        return pg

    def _addresses(self) -> tuple[str, ...]:
        return resolve(self.host, self.port, self.connect_timeout_s)

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
            return (self.credentials / name).read_text("utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise LoginFailed(
                "credentials_unreadable",
                f"key {name} of Secret {self.credentials.name} for {self.where} is unreadable:"
                f" {unreadable_reason(error)}",
                hint=f"give Secret {self.credentials.name} the keys username and password, as UTF-8 text",
            ) from None


def clamp_application_name(name: str, suffix: str) -> str:
    """Join both with a colon, in at most 63 bytes. ``name`` is truncated rather than ``suffix``."""
    tail = f":{suffix}".encode()[:_NAME_BYTES] if suffix else b""
    head = name.encode()[: _NAME_BYTES - len(tail)]
    return head.decode("utf-8", "ignore") + tail.decode("utf-8", "ignore")
