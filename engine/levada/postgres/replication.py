"""Commands of the streaming replication protocol that return rows."""

from __future__ import annotations

from psycopg import pq

from levada.postgres.failures import result_error, source_error, source_errors
from levada.postgres.server_names import SOURCE, ServerNames
from levada.postgres.silence import Silence, next_result


def execute_replication(
    pg: pq.abc.PGconn, command: str | bytes, doing: str, silence: Silence, names: ServerNames = SOURCE
) -> pq.abc.PGresult:
    """Run one command on a non-blocking replication connection and return its result.

    ``command`` is text if the session's encoding is UTF8.
    Other threads run while the server works. Raise the error that `levada.postgres.failures` lists for a failure, and
    Transient ``source_silent`` as `levada.postgres.silence` describes.
    """
    with source_errors(doing, names):
        pg.send_query(command.encode() if isinstance(command, str) else command)
        result = next_result(pg, doing, silence)
        if result is None:
            raise source_error(doing, None, "the server gave no answer", names)
        if result.status == pq.ExecStatus.COPY_BOTH:
            return result
        while next_result(pg, doing, silence) is not None:
            # The protocol requires reading to the end before the next command.
            pass
    if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
        raise result_error(doing, result, names)
    return result


def quote_literal(text: str) -> str:
    """Quote a string for the replication protocol's grammar, which has no escape strings."""
    return "'" + text.replace("'", "''") + "'"
