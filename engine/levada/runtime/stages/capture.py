"""The capture thread, which reconnects the stream with back-off."""

from __future__ import annotations

import logging
import threading
import time
from datetime import UTC, datetime, timedelta

from levada.capture import CapturePosition, CaptureWorker
from levada.errors import LevadaError
from levada.runtime.config import PipelineConfig
from levada.runtime.inbox import Inbox
from levada.runtime.source.reconnect import reconnect_delay
from levada.runtime.stages.messages import Fatal
from levada.runtime.tables.retries import as_levada_error
from levada.schema.stored_types import ColumnChoice
from levada.status import ErrorProgress, RetryPolicy
from levada.threads import marked_thread
from levada.values import TableId

_log = logging.getLogger(__name__)


class CaptureThread:
    """Runs `CaptureWorker` until it is stopped. After an error that allows a retry it runs again, within seconds.

    An error that allows no retry ends capture and the pipeline.
    """

    def __init__(self, worker: CaptureWorker, inbox: Inbox) -> None:
        self._worker = worker
        self._inbox = inbox
        self._stop = threading.Event()
        self._thread = marked_thread(self._run, "levada-capture")
        self._error: ErrorProgress | None = None
        self._connected_at = time.monotonic()
        self.attempts = 0
        """Attempts in a row that failed without staging anything. One that staged something starts again at 1."""

    @property
    def position(self) -> CapturePosition:
        """Return the position of the stream. From any thread."""
        return self._worker.position

    @property
    def connected(self) -> bool:
        """Return True while the stream is open and the server answers on it. From any thread."""
        return self._worker.connected

    def silent_s(self) -> float:
        """Return the seconds since the stream was last seen open by a call of this method, 0 while it is open."""
        now = time.monotonic()
        if self.connected:
            self._connected_at = now
        return now - self._connected_at

    @property
    def error(self) -> ErrorProgress | None:
        """The error that keeps the stream from running, with the time of the next attempt. None while it runs."""
        return None if self._worker.streaming else self._error

    def reopen(self) -> int:
        """Reconnect the stream soon, and return the number of the new session.

        `position` has that number in ``sessions`` once the new session has begun.
        """
        number = self.position.sessions + 1
        self._worker.reopen()
        return number

    def choose_columns(self, table: TableId, choice: ColumnChoice) -> None:
        """Stage these columns of a table from the next session on. From any thread. See `reopen`."""
        self._worker.choose_columns(table, choice)

    def configure(self, config: PipelineConfig) -> None:
        """Let the changed settings take effect, which are not read from a `ConfigRef` in the layer of capture."""
        self._worker.configure(
            batch_bytes=config.batch_bytes, fill_s=config.batch_fill_s, heartbeat_s=config.heartbeat_s
        )

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def request_stop(self) -> None:
        """Let the thread close the open segment at its last commit and free the slot. Return without waiting."""
        self._stop.set()

    def stop(self) -> None:
        """Do what `request_stop` does, and wait for the thread."""
        self.request_stop()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            staged = self.position.staged_lsn
            try:
                self._worker.run(self._stop)
                self._error = None
                return
            except BaseException as error:
                known = as_levada_error(error)
                # A stream that was open is no success yet. While staging has no room, the source would read the same
                # WAL again twice a second.
                self.attempts = 1 if self.position.staged_lsn > staged else self.attempts + 1
                delay = reconnect_delay(self.attempts) if known.passes else None
                self._error = _progress(known, self.attempts, delay)
                # Without the hint, whose commands the log could not complete. The status has it.
                said = f"{known.message} [{known.code}]"
                if delay is None:
                    _log.error("capture failed: %s", said, exc_info=error if known is not error else None)
                    self._inbox.put(Fatal(known))
                    return
                _log.warning("capture interrupted, next try in %.0f s: %s", delay, said)
                self._stop.wait(delay)


def _progress(error: LevadaError, attempt: int, delay_s: float | None) -> ErrorProgress:
    policy = RetryPolicy.MANUAL_RETRY if delay_s is None else RetryPolicy.TIMED_RETRY
    due = None if delay_s is None else datetime.now(UTC) + timedelta(seconds=delay_s)
    return ErrorProgress(error.code, error.message, error.hint, policy, attempt, due)
