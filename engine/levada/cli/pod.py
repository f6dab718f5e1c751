"""`levada check` before a driver starts in a pod: reports each result once, and tries a corrected Secret soon."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from levada.cli.exits import Exit
from levada.postgres.preflight import Problem, Severity
from levada.runtime.host.secret_watcher import SecretFollower

_log = logging.getLogger(__name__)

TERMINATION_LOG: Final = "LEVADA_TERMINATION_LOG"
"""The variable with the path of the file whose content Kubernetes puts into the pod's status."""
_MAX_BYTES: Final = 4096
"""The size that Kubernetes takes: https://kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure/"""
_LOOK_S: Final = 1.0
_AGAIN_S: Final = 60.0
_MOST_S: Final = 300.0


def check_until_right(
    check: Callable[[], tuple[Exit, tuple[Problem, ...]]], log: Path, folders: Iterable[Path], work_dir: Path
) -> Exit:
    """Check again until a start would succeed. End only with a result that differs from the last one.

    Kubernetes reads a container's message when it ends, and waits for up to five minutes before it starts one again
    that fails repeatedly. A check that fails as before does not end. It runs again when a file in ``folders`` changes,
    and every few minutes.
    """
    last, wait_s, watched = work_dir / "last-check", _AGAIN_S, tuple(folders)
    while True:
        # Read before the check: a change meanwhile counts.
        followers = [SecretFollower(folder) for folder in watched]
        code, problems = check()
        text = "".join(_lines(problems))
        if code is Exit.OK:
            last.unlink(missing_ok=True)
            return code
        if not last.is_file() or last.read_text("utf-8") != text:
            last.write_text(text, "utf-8")
            log.write_text(text, "utf-8")
            return code
        _log.info("the check fails as before, and runs again when a Secret or the manifest changes")
        _wait(followers, wait_s)
        wait_s = min(2 * wait_s, _MOST_S)


def _wait(followers: list[SecretFollower], most_s: float) -> None:
    deadline = time.monotonic() + most_s
    while time.monotonic() < deadline and not any([f.changed() for f in followers]):  # noqa: C419 - all of them look
        time.sleep(_LOOK_S)


def _lines(problems: Iterable[Problem]) -> Iterator[str]:
    """Yield the errors as the operator reads them, as many as fit."""
    room = _MAX_BYTES
    for problem in (p for p in problems if p.severity is Severity.ERROR):
        hint = problem.hint.replace("\n", " ")
        line = f"error: {problem.message} [{problem.code}]\n" + (f"  hint: {hint}\n" if hint else "")
        room -= len(line.encode())
        if room >= 0:
            yield line
