"""Output of commands: results to standard output, everything else to standard error."""

from __future__ import annotations

import io
import json
import os
import re
import select
import shlex
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from enum import StrEnum
from typing import Any, Final

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from levada.cli.hints import runnable
from levada.errors import LevadaError
from levada.printable import printable

UNBOUNDED: Final = 100_000
"""A width that no line reaches."""


_BORDERS: Final = 6
"""The width of a panel around its title."""
_TRAILING: Final = re.compile(" +$", re.MULTILINE)
_DSN: Final = re.compile("://|password *=", re.IGNORECASE)


class Output(StrEnum):
    """The format of a command's output."""

    TEXT = "text"
    JSON = "json"


class _Console(Console):
    """A console that escapes control characters instead of sending them to the terminal."""

    def print(self, *objects: Any, **options: Any) -> None:
        """Print the objects. A text may have several lines. Elsewhere than on a terminal no line ends with spaces."""
        shown = [printable(o) if isinstance(o, str) else o for o in objects]
        if self.is_terminal:
            super().print(*shown, **options)
            return
        with self.capture() as captured:
            super().print(*shown, **options)
        self.file.write(_TRAILING.sub("", captured.get()))
        self.file.flush()


def console() -> Console:
    """Return a console that writes to the current standard output. Elsewhere than on a terminal nothing is cut."""
    if sys.stdout.isatty():
        return _Console(file=sys.stdout, highlight=False)
    return _Console(file=sys.stdout, highlight=False, soft_wrap=True, width=UNBOUNDED)


def error_console() -> Console:
    """Return a console that writes to the current standard error."""
    return _Console(file=sys.stderr, highlight=False, soft_wrap=not sys.stderr.isatty())


@contextmanager
def working(what: str) -> Iterator[None]:
    """Show a spinner with ``what`` on a terminal during the block. Elsewhere show nothing."""
    target = error_console()
    with target.status(f"{what} …") if target.is_terminal else nullcontext():
        yield


def write_json(value: Any) -> None:
    """Write one JSON document to standard output."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def escape_unencodable() -> None:
    """Let standard output and error escape characters that their encoding lacks, instead of raising an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def stdout_closed() -> bool:
    """Return True if the reader of standard output has closed it, as ``| head -1`` does. Later output is discarded."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    if not any(events & select.POLLERR for _, events in poll.poll(0)):
        return False
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - it is open until the process ends
    return True


def show_error(error: BaseException, *, debug: bool) -> None:
    """Print the error and its hint, with a traceback only if ``debug``.

    The text of an error that is not a LevadaError may contain secrets, so only its type is shown without ``debug``, and
    the file of an error of the operating system.
    """
    if debug:
        traceback.print_exception(error, file=sys.stderr)
    if isinstance(error, LevadaError):
        show_problem("error", error.code, error.message, error.hint)
    elif not debug:
        name = type(error).__name__
        if isinstance(error, OSError) and isinstance(error.filename, str | os.PathLike):
            name += f": {error.filename}: {error.strerror}"
        show_problem("error", "internal_error", f"unexpected {name}", f"{_rerun_with_traceback()}, and report it")


def _rerun_with_traceback() -> str:
    """Return a hint with the command that repeats this invocation with a traceback. It has no DSN with a password."""
    words = ("DSN" if _DSN.search(word) else word for word in sys.argv[1:])
    return "run again with: LEVADA_DEBUG=1 " + shlex.join(["levada", *words])


def show_problem(severity: str, code: str, message: str, hint: str) -> None:
    """Print one problem: a panel on a terminal that is wide enough for its title, plain lines elsewhere.

    The hint is below the panel and has no line breaks of its width, because commands are copied from the terminal.
    """
    target = error_console()
    message, hint = printable(message), printable(runnable(hint))
    if not target.is_terminal:
        indented = hint.replace("\n", "\n        ")
        target.print(f"{severity}: {message} [{code}]" + (f"\n  hint: {indented}" if hint else ""), markup=False)
        return
    style, title = "red" if severity == "error" else "yellow", Text(f"{severity}: {code}")
    if title.cell_len + _BORDERS <= target.width:
        target.print(Panel(Text(message), title=title, title_align="left", border_style=style))
    else:
        # A title that does not fit would be cut, and the code with it.
        target.print(title, style=style)
        target.print(Text(message))
    if hint:
        target.print(Text(hint, "bold"), soft_wrap=True)
