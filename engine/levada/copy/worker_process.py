"""The loop of a worker process: it gets pickled tasks over a connection, and returns their outcomes and log records."""

from __future__ import annotations

import logging
import pickle
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import cloudpickle

from levada.copy.reader_sessions import SESSIONS
from levada.copy.tasks import attempt

OUTCOME: Final = b"o"
"""The first byte of a message with the outcome of a task."""
LOG_RECORD: Final = b"l"
"""The first byte of a message with a log record."""

_KEPT_S: Final = 5.0
"""Seconds for which the session at the source is kept, as `ProcessTasks` keeps a worker without a task."""
_OOM_SCORE: Final = "500"
"""Half of what makes a process the first one that the kernel ends when memory is short."""


_FORMATTER: Final = logging.Formatter()


@dataclass(frozen=True, slots=True)
class Setup:
    """The first message to a worker: where it finds modules, and the level from which it logs."""

    path: Sequence[str]
    log_level: int


def work(engine: Connection) -> None:
    """Run the tasks that come over the connection until it is closed."""
    # If memory is short, the kernel should end a copy, which is retried, and not the engine.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OOM_SCORE)
    with suppress(EOFError, ConnectionError):
        setup: Setup = pickle.loads(engine.recv_bytes())
        sys.path[:] = setup.path
        handler = _Records(engine)
        root = logging.getLogger()
        root.handlers[:] = [handler]
        root.setLevel(setup.log_level)
        SESSIONS.keep(_KEPT_S)
        while True:
            outcome = attempt(engine.recv_bytes())
            handler.send(OUTCOME, outcome)


class _Records(logging.Handler):
    """Sends log records to the engine. Its lock also separates them from the outcomes."""

    def __init__(self, engine: Connection) -> None:
        super().__init__()
        self._engine = engine

    def emit(self, record: logging.LogRecord) -> None:
        """Send the record as text, because its arguments and its traceback may not be picklable."""
        try:
            plain = logging.makeLogRecord(record.__dict__ | {"msg": record.getMessage(), "args": None})
            if record.exc_info:
                plain.exc_text, plain.exc_info = _FORMATTER.formatException(record.exc_info), None
            self.send(LOG_RECORD, cloudpickle.dumps(plain))
        except Exception:
            self.handleError(record)

    def send(self, kind: bytes, content: bytes) -> None:
        self.acquire()
        try:
            self._engine.send_bytes(kind + content)
        finally:
            self.release()
