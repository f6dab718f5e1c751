"""How the process logs: lines for people, or JSON for machines, on standard error."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from textwrap import indent
from typing import Any, Final

from levada.printable import one_record, printable

_QUIET: Final = ("py4j", "pyspark", "pyiceberg", "fsspec", "urllib3", "asyncio")
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def configure(*, as_json: bool = False, debug: bool = False, quiet: bool = False) -> None:
    """Send every log record to standard error, in place of what was configured before.

    Levada's own records from INFO on (``debug``: all; ``quiet``: errors), libraries' from WARNING on.
    """
    handler = _StandardError()
    handler.setFormatter(JsonFormatter() if as_json else LineFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("levada").setLevel(logging.DEBUG if debug else logging.ERROR if quiet else logging.INFO)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.ERROR if name == "py4j" else logging.WARNING)


class LineFormatter(logging.Formatter):
    """``2026-01-31T12:00:00.123Z INFO levada.capture: message``; a traceback follows where there is one."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 - the library's name
        """Return the time in UTC, with milliseconds."""
        return _time(record)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the library's name
        """Return the line. A name that holds a line feed does not make a second one that looks like a record."""
        return one_record(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - the library's name
        """Return the traceback, indented as the lines of one record are."""
        return indent(printable(super().formatException(ei)), "  ", lambda line: True)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and whatever was given as ``extra``."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON."""
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname,
            "logger": record.name,
            "thread": record.threadName,
            "message": record.getMessage(),
        }
        line |= {key: value for key, value in vars(record).items() if key not in _STANDARD}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class _StandardError(logging.StreamHandler[Any]):
    """Writes to what standard error is at the time of each record, so that a live display may redirect it."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> Any:
        return sys.stderr


def _time(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
