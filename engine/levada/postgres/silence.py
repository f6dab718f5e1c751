"""Time limits for servers that do not answer.

A connection can go silent without being closed: a NAT forgets it, or a pooler or proxy hangs. TCP does not detect that
if the peer's kernel still acknowledges. So a client that waits measures the time since it last received something.

Silence alone is not an error. A server may compute for minutes before a statement's first row, wait for running
transactions before it creates a slot, or decode a large transaction of which nothing is published. So at the limit, a
second connection reads `pg_stat_activity`. If the backend is at work, and waits neither for its client nor for
something to do, the wait continues for another limit. Otherwise the connection has failed: the answer was lost, or the
server is unreachable. A backend at work is never interrupted, because each new attempt would repeat its work.
"""

from __future__ import annotations

import logging
import select
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

import psycopg
from psycopg import pq
from psycopg.abc import PQGen

from levada.postgres.server_names import SOURCE, ServerNames, keep_names

_log = logging.getLogger(__name__)

SILENCE_S: Final = 60.0
"""Seconds without a byte from the server before a second connection checks whether the backend is at work."""

# While it creates a slot, a walsender waits for WAL from other sessions, like an idle one that streams.
AT_WORK: Final = """
SELECT state IN ('active', 'disabled')
    AND (coalesce(wait_event_type, '') NOT IN ('Client', 'Activity') OR query LIKE 'CREATE_REPLICATION_SLOT %%')
FROM pg_catalog.pg_stat_activity WHERE pid = %s
"""

GROW: Final = "SELECT pg_catalog.repeat('x', 65536)"
"""A query after which libpq's input buffer of the connection has 128 KiB.

It begins with 16 KiB, grows only for a message that does not fit, and stays as it is. A stream of small messages would
be read in pieces of 16 KiB, each with a wait and a read of its own.
"""
_POLL_MS: Final = 1000
"""Milliseconds of one wait for the server. Python's signals and the detection of silence are delayed by at most
this.
"""

_RV = TypeVar("_RV")
AtWork = Callable[[int], bool]
"""Return True if the backend with this PID is at work."""
Interrupt = Callable[[], None]
"""Raise an error to end the wait."""


class Silence:
    """The time for which one wait has received nothing. Without ``at_work``, the limit is final.

    ``interrupt`` is called about once a second of silence, and may raise to end the wait.
    """

    def __init__(self, limit_s: float, at_work: AtWork | None = None, interrupt: Interrupt | None = None) -> None:
        self.limit_s = limit_s
        self._at_work = at_work
        self._interrupt = interrupt
        self._since = time.monotonic()
        self._check_at_s = limit_s
        self._logged = False

    @property
    def seconds(self) -> float:
        """Seconds since something was received, or since the server was last seen at work."""
        return time.monotonic() - self._since

    def reset(self) -> None:
        """Restart the measurement, because something was received."""
        self._since = time.monotonic()
        self._check_at_s = self.limit_s

    def check(self, pid: int, doing: str) -> None:
        """Raise OperationalError if the limit has passed and the backend is not at work.

        A backend that has just finished its work has sent an answer, which may not have arrived. So the error needs two
        checks.
        """
        if self._interrupt is not None:
            self._interrupt()
        if self.seconds < self._check_at_s:
            return
        if self._at_work is not None and self._at_work(pid):
            if not self._logged:
                _log.info("%s: the server is still at work, or waits for running transactions or a lock", doing)
                self._logged = True
            self.reset()
        elif self._at_work is None or self._check_at_s > self.limit_s:
            raise psycopg.OperationalError(f"nothing received for {self.limit_s:g} s, and the server is not at work")
        else:
            self._check_at_s = self.seconds + _POLL_MS / 1000


def next_result(pg: pq.abc.PGconn, doing: str, silence: Silence) -> pq.abc.PGresult | None:
    """Return the next result of the sent commands, or None after the last. Raise OperationalError on silence.

    libpq's own wait for a result has no time limit.
    """
    while (unsent := pg.flush()) or pg.is_busy():
        await_input(pg, doing, silence, unsent=bool(unsent))
    return pg.get_result()


def await_input(pg: pq.abc.PGconn, doing: str, silence: Silence, *, unsent: bool = False) -> None:
    """Wait for at most a second for input or, if something is ``unsent``, for room in the send buffer."""
    poll = select.poll()
    poll.register(pg.socket, select.POLLIN | (select.POLLOUT if unsent else 0))
    ready = poll.poll(min(_POLL_MS, silence.limit_s * 1000))
    if ready:
        pg.consume_input()
    if any(event & ~select.POLLOUT for _, event in ready):
        silence.reset()
    else:
        silence.check(pg.backend_pid, doing)


class WatchedConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection whose waits have a time limit. A connection that went silent is closed."""

    limit_s: float = SILENCE_S
    at_work: AtWork | None = None
    doing: str = "waiting for an answer"
    server_pid: int = 0
    """The PID of the server's session in a transaction, where a pooler may have reported another one. 0: it has not."""
    qualified: bool = False
    """True if the search_path of the session is pg_catalog, so that PostgreSQL writes names with their schemas."""
    names: ServerNames = SOURCE
    """The words of hints about errors of its statements."""
    grown: bool = False
    """True if libpq's input buffer has its final size, see `GROW`."""

    def silence(self, interrupt: Interrupt | None = None) -> Silence:
        """Return a new measurement of the server's silence, which starts now."""
        return Silence(self.limit_s, self.at_work, interrupt)

    def wait(self, gen: PQGen[_RV], interval: float = 0.1, timeout: float | None = None) -> _RV:
        """Run a generator that operates on the connection, with the time limit. Its errors keep the session's names."""
        try:
            return super().wait(self._watched(gen), interval, timeout)
        except psycopg.Error as error:
            keep_names(error, self.names)
            raise

    def _watched(self, gen: PQGen[_RV]) -> PQGen[_RV]:
        silence = self.silence()
        try:
            state = next(gen)
            while True:
                ready = yield state
                if ready:
                    silence.reset()
                else:
                    self._check(silence)
                state = gen.send(ready)
        except StopIteration as end:
            result: _RV = end.value
            return result

    def _check(self, silence: Silence) -> None:
        try:
            silence.check(self.server_pid or self.pgconn.backend_pid, self.doing)
        except psycopg.OperationalError:
            self.pgconn.finish()
            raise
