"""The capture thread: one stream after another, with back-off between them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from levada.capture import CapturePosition, CaptureWorker
from levada.errors import LevadaError
from levada.runtime.config import RetryLimits
from levada.runtime.progress import ErrorProgress
from levada.runtime.tables.retries import as_levada_error
from levada.stores.phases import RetryPolicy

_log = logging.getLogger(__name__)


class CaptureThread:
    """Runs `CaptureWorker`, again after every error that mends itself, until stopped or until one that does not.

    ``failed`` is called once, from this thread, with an error that ends capture for good.
    """

    def __init__(
        self, worker: CaptureWorker, limits: Callable[[], RetryLimits], failed: Callable[[LevadaError], None]
    ) -> None:
        self._worker = worker
        self._limits = limits
        self._failed = failed
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="levada-capture", daemon=True)
        self._error: ErrorProgress | None = None
        self._connected_at = time.monotonic()
        self.attempts = 0
        """How many tries in a row have ended before their session of the stream began."""

    @property
    def position(self) -> CapturePosition:
        """Return where the stream is; from any thread."""
        return self._worker.position

    @property
    def connected(self) -> bool:
        """Return True while the stream is open and the server answers on it; from any thread."""
        return self._worker.connected

    def silent_s(self) -> float:
        """Return for how many seconds no stream has been open, as far as earlier calls have seen.

        Return 0 while one is open.
        """
        now = time.monotonic()
        if self.connected:
            self._connected_at = now
        return now - self._connected_at

    @property
    def error(self) -> ErrorProgress | None:
        """The error that keeps the stream from running, with the time of the next try; None while it runs."""
        return None if self._worker.streaming else self._error

    def reopen(self) -> int:
        """Ask for a new session of the stream; return its number, which `position` tells once it has begun."""
        number = self.position.sessions + 1
        self._worker.reopen()
        return number

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Close the open segment at its last commit, free the slot, and wait for the thread."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            sessions = self.position.sessions
            try:
                self._worker.run(self._stop)
                self._error = None
                return
            except Exception as error:
                known = as_levada_error(error)
                # A session that began is a success, whatever ended it: the source answers.
                self.attempts = 1 if self.position.sessions > sessions else self.attempts + 1
                delay = self._limits().delay(self.attempts) if known.retried else None
                self._error = _progress(known, self.attempts, delay)
                if delay is None:
                    _log.error("capture ended: %s", known, exc_info=error if known is not error else None)
                    self._failed(known)
                    return
                _log.warning("capture interrupted, next try in %.0f s: %s", delay, known)
                self._stop.wait(delay)


def _progress(error: LevadaError, attempt: int, delay_s: float | None) -> ErrorProgress:
    policy = RetryPolicy.MANUAL_RETRY if delay_s is None else RetryPolicy.TIMED_RETRY
    due = None if delay_s is None else datetime.now(UTC) + timedelta(seconds=delay_s)
    return ErrorProgress(error.code, error.message, error.hint, policy.value, attempt, due)
