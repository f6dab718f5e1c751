"""Time limits for a server that says nothing.

A connection can go silent without an end: a NAT forgets it, a pooler or a proxy hangs. TCP does not notice where the
peer's kernel still acknowledges. So a client that waits measures how long nothing has been received.

Silence alone is no fault: a server may compute for minutes before a statement's first row, wait for running
transactions before it makes a slot, or decode a large transaction of which nothing is published. So at the limit the
server is asked over a second connection. If `pg_stat_activity` shows that the backend is at work, and waits neither for
its client nor for something to do, the wait goes on for another limit. Otherwise the connection has failed: the answer
was lost, or the server cannot be reached at all. A backend that works is never interrupted, as each new attempt would
begin its work again.
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

_log = logging.getLogger(__name__)

SILENCE_S: Final = 60.0
"""Seconds without a byte from the server before it is asked over a second connection."""

# While it makes a slot, a walsender waits for WAL that others write, as one that streams does when it is idle.
AT_WORK: Final = """
SELECT state IN ('active', 'disabled')
    AND (coalesce(wait_event_type, '') NOT IN ('Client', 'Activity') OR query LIKE 'CREATE_REPLICATION_SLOT %%')
FROM pg_catalog.pg_stat_activity WHERE pid = %s
"""

_POLL_MS: Final = 1000
"""The longest time that a wait for the server keeps Python's signals waiting, or is late to notice silence."""

_RV = TypeVar("_RV")
AtWork = Callable[[int], bool]
"""Returns True if the backend with this PID is at work."""


class Silence:
    """Measures how long one wait has received nothing. ``at_work`` None: the limit holds without a look."""

    def __init__(self, limit_s: float, at_work: AtWork | None = None) -> None:
        self.limit_s = limit_s
        self._at_work = at_work
        self._since = time.monotonic()
        self._look_at_s = limit_s
        self._logged = False

    @property
    def seconds(self) -> float:
        """Seconds since something was received, or since the server was last seen at work."""
        return time.monotonic() - self._since

    def heard(self) -> None:
        """Begin to count again: something was received."""
        self._since = time.monotonic()
        self._look_at_s = self.limit_s

    def check(self, pid: int, doing: str) -> None:
        """Raise OperationalError if the limit is over and the backend is not at work.

        A backend that has just ended its work has sent an answer, which may not have arrived. So it is looked at twice.
        """
        if self.seconds < self._look_at_s:
            return
        if self._at_work is not None and self._at_work(pid):
            if not self._logged:
                _log.info("%s: the server is still at work, or waits for running transactions or a lock", doing)
                self._logged = True
            self.heard()
        elif self._at_work is None or self._look_at_s > self.limit_s:
            raise psycopg.OperationalError(f"nothing received for {self.limit_s:g} s, and the server is not at work")
        else:
            self._look_at_s = self.seconds + _POLL_MS / 1000


def next_result(pg: pq.abc.PGconn, doing: str, silence: Silence) -> pq.abc.PGresult | None:
    """Return the next result of what was sent, None after the last; raise OperationalError on silence.

    libpq's own wait for a result has no time limit.
    """
    while (unsent := pg.flush()) or pg.is_busy():
        await_input(pg, doing, silence, unsent=bool(unsent))
    return pg.get_result()


def await_input(pg: pq.abc.PGconn, doing: str, silence: Silence, *, unsent: bool = False) -> None:
    """Wait for something to read, or, if there is something ``unsent``, for room to send it; for a second at most."""
    poll = select.poll()
    poll.register(pg.socket, select.POLLIN | (select.POLLOUT if unsent else 0))
    ready = poll.poll(min(_POLL_MS, silence.limit_s * 1000))
    if ready:
        pg.consume_input()
    if any(event & ~select.POLLOUT for _, event in ready):
        silence.heard()
    else:
        silence.check(pg.backend_pid, doing)


class WatchedConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection whose waits have an end. One that went silent is closed, so that nothing waits for it again."""

    limit_s: float = SILENCE_S
    at_work: AtWork | None = None
    doing: str = "waiting for an answer"

    def silence(self) -> Silence:
        """Begin to measure how long the server is silent."""
        return Silence(self.limit_s, self.at_work)

    def wait(self, gen: PQGen[_RV], interval: float = 0.1, timeout: float | None = None) -> _RV:
        """Consume a generator that operates on the connection."""
        return super().wait(self._watched(gen), interval, timeout)

    def _watched(self, gen: PQGen[_RV]) -> PQGen[_RV]:
        silence = self.silence()
        try:
            state = next(gen)
            while True:
                ready = yield state
                if ready:
                    silence.heard()
                else:
                    self._check(silence)
                state = gen.send(ready)
        except StopIteration as end:
            result: _RV = end.value
            return result

    def _check(self, silence: Silence) -> None:
        try:
            silence.check(self.pgconn.backend_pid, self.doing)
        except psycopg.OperationalError:
            self.pgconn.finish()
            raise
