"""Commands of the streaming replication protocol that answer with rows."""

from __future__ import annotations

from psycopg import pq

from levada.postgres.failures import result_error, source_error, source_errors
from levada.postgres.silence import Silence, next_result


def execute_replication(pg: pq.abc.PGconn, command: str, doing: str, silence: Silence) -> pq.abc.PGresult:
    """Run one command on a non-blocking replication connection and return its result.

    Other threads run while the server works. Raise what the table of failures says, Transient ``source_silent`` as
    `levada.postgres.silence` says.
    """
    with source_errors(doing):
        pg.send_query(command.encode())
        result = next_result(pg, doing, silence)
        if result is None:
            raise source_error(doing, None, "the server gave no answer")
        if result.status == pq.ExecStatus.COPY_BOTH:
            return result
        while next_result(pg, doing, silence) is not None:
            # The protocol wants to be read to its end before the next command.
            pass
    if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
        raise result_error(doing, result)
    return result


def quote_literal(text: str) -> str:
    """Quote for the replication protocol's grammar, which knows no escape strings."""
    return "'" + text.replace("'", "''") + "'"
