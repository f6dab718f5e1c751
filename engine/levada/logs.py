"""Logging of a process: lines for people, or JSON for machines, on standard error. The same for engine and operator."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from textwrap import indent
from typing import Any, Final

from pythonjsonlogger.json import JsonFormatter

from levada.printable import one_record, printable
from levada.values import Lsn, QualifiedTable

_OURS: Final = ("levada", "levada_operator")
_fields: Final[dict[str, str | int]] = {}
"""The fields of each JSON record. The command line sets them, and a process of it runs one pipeline."""
_QUIET: Final = ("py4j", "pyspark", "pyiceberg", "fsspec", "urllib3", "asyncio")


def configure(*, as_json: bool = False, debug: bool = False, quiet: bool = False) -> None:
    """Send every log record to standard error. Replaces the former configuration.

    On a terminal lines have no more than the time, the level of a warning or an error, and the message. With ``debug``
    they are as elsewhere.

    Levada's own records are logged from INFO on, all of them with ``debug``, only errors with ``quiet``. Records of
    libraries are logged from WARNING on.
    """
    handler = _StandardError()
    short = sys.stderr.isatty() and not debug
    handler.setFormatter(_Json() if as_json else ShortFormatter() if short else LineFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    for name in _OURS:
        logging.getLogger(name).setLevel(logging.DEBUG if debug else logging.ERROR if quiet else logging.INFO)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.ERROR if name == "py4j" else logging.WARNING)


def add_fields(**fields: str | int) -> None:
    """Add fields to each JSON record of this process from now on. A field that was added before gets the new value."""
    _fields.update(fields)


class _UtcTime(logging.Formatter):
    """Times in UTC, with milliseconds."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 - the library's name
        """Return the time of a record."""
        at = datetime.fromtimestamp(record.created, UTC)
        return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class LineFormatter(_UtcTime):
    """Lines such as ``2026-01-31T12:00:00.123Z INFO levada.capture: message``, followed by the traceback if any."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the library's name
        """Return the line. A line feed in a name is escaped, so that it cannot imitate a second record."""
        return one_record(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - the library's name
        """Return the traceback, indented so that its lines do not look like records."""
        return indent(printable(super().formatException(ei)), "  ", lambda line: True)


class ShortFormatter(LineFormatter):
    """Lines such as ``12:00:00 message`` or ``12:00:00 WARNING message``, in UTC."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the library's name
        """Return the line."""
        level = f"{record.levelname} " if record.levelno > logging.INFO else ""
        return one_record(f"{datetime.fromtimestamp(record.created, UTC):%H:%M:%S} {level}{record.message}")


_OF_ARGUMENTS: Final[dict[str, type]] = {"table": QualifiedTable, "lsn": Lsn}


class _Json(_UtcTime, JsonFormatter):
    """One JSON object per line: time, level, logger, thread, message, and the record's ``extra``.

    ``table`` and ``lsn`` are the first table and the first LSN of the message's arguments. See `add_fields` for more.
    """

    def __init__(self) -> None:
        JsonFormatter.__init__(
            self,
            "%(asctime)s %(levelname)s %(name)s %(threadName)s %(message)s",
            rename_fields={
                "asctime": "time",
                "levelname": "level",
                "name": "logger",
                "threadName": "thread",
                "exc_info": "traceback",
            },
            json_default=str,
        )

    def add_fields(self, log_data: dict[str, Any], record: logging.LogRecord, message_dict: dict[str, Any]) -> None:
        """Fill the object of a record."""
        super().add_fields(log_data, record, message_dict)
        arguments = record.args if isinstance(record.args, tuple) else ()
        for name, kind in _OF_ARGUMENTS.items():
            found = next((a for a in arguments if isinstance(a, kind)), None)
            if found is not None:
                log_data.setdefault(name, str(found))
        for name, value in _fields.items():
            log_data.setdefault(name, value)


class _StandardError(logging.StreamHandler[Any]):
    """Writes to standard error as it is at the time of each record, so that a live display can redirect it."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> Any:
        return sys.stderr
