"""Hints as commands that run as printed: with the manifest and the options that this command was called with."""

from __future__ import annotations

import re
import shlex
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_COMMAND: Final = re.compile(r"\blevada (?P<verb>[a-z]+) MANIFEST\b")
_WITH_WORK_DIR: Final = frozenset({"run", "check", "status", "cleanup", "takeover"})


@dataclass(frozen=True, slots=True)
class Invocation:
    """The arguments that the commands have in common."""

    manifest: Path
    secrets: Path | None = None
    work_dir: Path | None = None


_invocation: ContextVar[Invocation | None] = ContextVar("levada_invocation", default=None)


def remember(invocation: Invocation | None) -> None:
    """Keep what the command line named, for the hints that are shown from now on; None: there is none."""
    _invocation.set(invocation)


def runnable(hint: str) -> str:
    """Return the hint with MANIFEST replaced by the manifest's path and the options that go with it."""
    called = _invocation.get()
    return hint if called is None else _COMMAND.sub(lambda m: _command(m["verb"], called), hint)


def _command(verb: str, called: Invocation) -> str:
    words = ["levada", verb, str(called.manifest)]
    if called.secrets is not None:
        words += ["--secrets", str(called.secrets)]
    if called.work_dir is not None and verb in _WITH_WORK_DIR:
        words += ["--work-dir", str(called.work_dir)]
    return shlex.join(words)
