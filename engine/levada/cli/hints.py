"""Hints as complete commands, with the manifest and the options of the current command."""

from __future__ import annotations

import os
import re
import shlex
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from levada.runtime.host.manifest_file import COMMAND_PREFIX

_COMMAND: Final = re.compile(r"\blevada (?P<debug>--debug )?(?P<verb>[a-z]+) MANIFEST\b")
_WITH_WORK_DIR: Final = frozenset({"run", "check", "plan", "status", "cleanup", "takeover"})


@dataclass(frozen=True, slots=True)
class Invocation:
    """The arguments that all commands have in common."""

    manifest: Path
    secrets: Path | None = None
    work_dir: Path | None = None


_invocation: ContextVar[Invocation | None] = ContextVar("levada_invocation", default=None)


def set_invocation(invocation: Invocation | None) -> None:
    """Set the arguments that later hints contain. None: hints are shown unchanged."""
    _invocation.set(invocation)


def runnable(hint: str) -> str:
    """Return the hint with MANIFEST replaced by the manifest's path and its options."""
    called = _invocation.get()
    return hint if called is None else _COMMAND.sub(lambda m: _command(m["verb"], called, bool(m["debug"])), hint)


def _command(verb: str, called: Invocation, debug: bool) -> str:
    words = ["levada", *(["--debug"] if debug else []), verb, str(called.manifest)]
    if prefix := os.environ.get(COMMAND_PREFIX):
        # The environment of the pod has the options.
        return f"{prefix} {shlex.join(words)}"
    if called.secrets is not None:
        words += ["--secrets", str(called.secrets)]
    if called.work_dir is not None and verb in _WITH_WORK_DIR:
        words += ["--work-dir", str(called.work_dir)]
    return shlex.join(words)
