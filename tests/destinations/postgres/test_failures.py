"""The errors of the destination's server, each with its class, code and hint."""

from __future__ import annotations

import psycopg
import pytest

from levada.destinations.postgres.failures import connect_errors, statement_error
from levada.errors import LevadaError, LoginFailed, NeedsOperator, Transient


class _Rejected(psycopg.OperationalError):
    def __init__(self, sqlstate: str, message: str) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


@pytest.mark.parametrize(
    ("state", "message", "kind", "code", "hint"),
    [
        ("25006", "cannot execute INSERT in a read-only transaction", Transient, "destination_read_only", "primary"),
        ("55006", "database is being accessed by other users", Transient, "destination_busy", "holds the lock"),
        ("57P04", "terminating connection", LoginFailed, "destination_database_missing", "check database"),
        ("42601", "syntax error", NeedsOperator, "destination_statement_failed", "levada retry MANIFEST TABLE"),
    ],
)
def test_statements(state: str, message: str, kind: type[LevadaError], code: str, hint: str) -> None:
    """The SQLSTATE of a failed statement decides about the retry, and the message is the server's own."""
    error = statement_error("writing public.t", _Rejected(state, message))
    assert (type(error), error.code) == (kind, code)
    assert error.message.startswith(f"writing public.t: {message}")
    assert hint in error.hint


@pytest.mark.parametrize(
    ("source", "kind", "code", "hint"),
    [
        ("source_access_denied", NeedsOperator, "destination_access_denied", "SELECT pg_reload_conf()"),
        ("source_auth_failed", LoginFailed, "destination_auth_failed", "keys username and password"),
        ("source_database_missing", LoginFailed, "destination_database_missing", "check database"),
        ("version_unsupported", NeedsOperator, "destination_unsupported", "upgrade the destination's server"),
        ("source_tls_failed", LoginFailed, "destination_tls_failed", "check tls"),
        ("too_many_connections", Transient, "destination_busy", "raise max_connections"),
    ],
)
def test_connections(source: str, kind: type[LevadaError], code: str, hint: str) -> None:
    """An error of connecting, which has the words of a source, gets those of the destination."""
    with pytest.raises(kind) as raised, connect_errors():
        raise kind(source, "connecting", hint="check the source")
    assert raised.value.code == code
    assert hint in raised.value.hint
    assert "source" not in raised.value.hint
