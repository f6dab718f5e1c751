"""Commands of the streaming replication protocol that answer with rows."""

from __future__ import annotations

import select
from typing import Final

from psycopg import pq

from levada.postgres.failures import result_error, source_error, source_errors

_POLL_MS: Final = 1000
"""How long a wait for the server may keep Python's signals waiting."""


def execute_replication(pg: pq.abc.PGconn, command: str, doing: str) -> pq.abc.PGresult:
    """Run one command on a non-blocking replication connection and return its result.

    Other threads run while the server works. Raise what the table of failures says.
    """
    with source_errors(doing):
        pg.send_query(command.encode())
        _await_result(pg)
    result = pg.get_result()
    if result is None:
        raise source_error(doing, None, "the server gave no answer")
    if result.status == pq.ExecStatus.COPY_BOTH:
        return result
    while pg.get_result() is not None:
        # The protocol wants to be read to its end before the next command.
        pass
    if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
        raise result_error(doing, result)
    return result


def _await_result(pg: pq.abc.PGconn) -> None:
    poll = select.poll()
    while (unsent := pg.flush()) or pg.is_busy():
        poll.register(pg.socket, select.POLLIN | (select.POLLOUT if unsent else 0))
        if poll.poll(_POLL_MS):
            pg.consume_input()


def quote_literal(text: str) -> str:
    """Quote for the replication protocol's grammar, which knows no escape strings."""
    return "'" + text.replace("'", "''") + "'"


def quote_identifier(name: str) -> str:
    """Quote a name for the replication protocol and for lists of names in its options."""
    return '"' + name.replace('"', '""') + '"'
