"""COPY TO STDOUT: its payloads, collected in one buffer. `levada.pgoutput` decodes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from psycopg import pq

from levada.postgres.failures import result_error, source_error, source_errors
from levada.postgres.silence import GROW, Interrupt, Silence, WatchedConnection, await_input, next_result

_SLICE_BYTES: Final = 2 << 20
"""Size in bytes at which a slice ends. Larger slices leave the processor's caches before they are decoded."""


def copy_out(
    conn: WatchedConnection, statement: bytes, doing: str, interrupt: Interrupt | None = None
) -> Iterator[tuple[bytearray, list[int]]]:
    """Run a COPY TO STDOUT, and yield slices: concatenated CopyData payloads, and each payload's size in bytes.

    A slice ends with the payload that brings it to 2 MiB. The last slice may be smaller. ``doing`` describes the
    operation in error messages. If the iterator is abandoned, the connection stays in the middle of the COPY, also if
    ``interrupt`` raises while the server computes. Raise Transient ``source_silent`` as `levada.postgres.silence`
    describes.
    """
    pg, silence = conn.pgconn, conn.silence(interrupt)
    with source_errors(doing):
        if not conn.grown:
            _grow(conn, doing, silence)
        pg.send_query(statement)
        started = next_result(pg, doing, silence)
    if started is None:
        raise source_error(doing, None, "the server gave no answer")
    if started.status != pq.ExecStatus.COPY_OUT:
        raise result_error(doing, started)
    receive = pg.get_copy_data
    data = bytearray()
    sizes: list[int] = []
    left = _SLICE_BYTES
    with source_errors(doing):
        while True:
            size, payload = receive(1)
            if size > 0:
                # Appended to one buffer immediately: an object for each payload would be the largest cost here.
                data += payload
                sizes.append(size)
                left -= size
                if left <= 0:
                    yield data, sizes
                    data, sizes, left = bytearray(), [], _SLICE_BYTES
            elif size == 0:
                await_input(pg, doing, silence)
            else:
                break
        ended = next_result(pg, doing, silence)
        while next_result(pg, doing, silence) is not None:
            pass
    if ended is None or ended.status != pq.ExecStatus.COMMAND_OK:
        raise result_error(doing, ended or started)
    if sizes:
        yield data, sizes


def _grow(conn: WatchedConnection, doing: str, silence: Silence) -> None:
    conn.pgconn.send_query(GROW.encode())
    while (grown := next_result(conn.pgconn, doing, silence)) is not None:
        if grown.status != pq.ExecStatus.TUPLES_OK:
            raise result_error(doing, grown)
    conn.grown = True
