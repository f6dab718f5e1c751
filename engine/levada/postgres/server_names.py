"""The words by which hints name a server, its settings and its login."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass, replace
from typing import Final


@dataclass(frozen=True, slots=True)
class ServerNames:
    """The words for one server. Those of the source by default.

    ``host``, ``database`` and ``tls`` name settings of the user, ``login`` where the user and the password are.
    ``role`` and ``dbname`` are the names for SQL. ``name`` is the host for a shell. ``address`` is the host and the
    port as options of PostgreSQL's programs.
    """

    server: str = "the source"
    host: str = "spec.source.host"
    database: str = "spec.source.database"
    tls: str = "spec.source.tls"
    login: str = "the username and password in the source's credentials"
    role: str = "ROLE"
    dbname: str = "DATABASE"
    name: str = "HOST"
    address: str = "-h HOST -p PORT"

    def at(self, host: str, port: int) -> ServerNames:
        """Return the words for a server at this address."""
        return replace(self, name=shlex.quote(host), address=shlex.join(["-h", host, "-p", str(port)]))

    def of_session(self, error: BaseException) -> ServerNames:
        """Return the words with the role, the database and the address of the session whose statement failed."""
        kept = vars(error).get(_KEPT)
        if not isinstance(kept, ServerNames) or self.role != SOURCE.role:
            return self
        return replace(self, role=kept.role, dbname=kept.dbname, name=kept.name, address=kept.address)

    def fill(self, hint: str) -> str:
        """Return a hint with these words in the place of their fields in braces."""
        return hint.format(**asdict(self))


_KEPT: Final = "levada_names"

SOURCE: Final = ServerNames()
STORE: Final = ServerNames(
    server="the store's server",
    host="spec.store.postgres.connection.host",
    database="spec.store.postgres.connection.database",
    tls="spec.store.postgres.connection.tls",
    login="the username and password of spec.store.postgres.connection",
)


def keep_names(error: BaseException, names: ServerNames) -> None:
    """Let the error of a statement keep the names of its session, which no error of psycopg has."""
    vars(error)[_KEPT] = names
