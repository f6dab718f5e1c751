"""The connection to a store in another database than the source's."""

from __future__ import annotations

from typing import Final

from levada import codes
from levada.errors import LevadaError, LoginFailed, NeedsOperator, StatementRefused, Transient
from levada.postgres.connection import PostgresConnection
from levada.postgres.silence import WatchedConnection

_OF_ANY_SERVER: Final = (codes.TOO_MANY_CONNECTIONS, codes.VERSION_UNSUPPORTED)


class StoreConnection(PostgresConnection):
    """The address and login of a PostgreSQL store. Errors of its server have codes of the store, not of the source."""

    __slots__ = ()

    def _connect(self, application: str) -> WatchedConnection:
        try:
            return PostgresConnection._connect(self, application)
        except LevadaError as error:
            raise store_error(error) from error


def store_error(error: LevadaError) -> LevadaError:
    """Return the store's error for an error of its server, or the same error for any other."""
    if not error.code.startswith("source_") and error.code not in _OF_ANY_SERVER:
        return error
    message = f"the store's server: {error.message}"
    if isinstance(error, Transient):
        return Transient("store_unreachable", message, hint=error.hint)
    if error.code == codes.SOURCE_AUTH_FAILED:
        return LoginFailed("store_login_failed", message, hint=error.hint)
    if isinstance(error, LoginFailed):
        return LoginFailed("store_unusable", message, hint=error.hint)
    kind = StatementRefused if isinstance(error, StatementRefused) else NeedsOperator
    return kind("store_unusable", message, hint=error.hint)
