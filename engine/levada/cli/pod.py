"""`levada check` and `levada run` in a pod: report each refusal once, and try a corrected Secret soon.

Kubernetes reads a container's message when it ends, and waits for up to five minutes before it starts one again that
fails repeatedly. So a container ends only with a refusal that differs from its last one.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from levada.cli.exits import Exit
from levada.postgres.preflight import Problem, Severity
from levada.runtime.host.secret_watcher import SecretFollower

_log = logging.getLogger(__name__)

TERMINATION_LOG: Final = "LEVADA_TERMINATION_LOG"
"""The variable with the path of the file whose content Kubernetes puts into the pod's status. Set in pods alone."""
_MAX_BYTES: Final = 4096
"""The size that Kubernetes takes: https://kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure/"""
_LOOK_S: Final = 1.0
_AGAIN_S: Final = 60.0
_MOST_S: Final = 300.0
_STAY_S: Final = 600.0
"""How long a start stays with a known refusal. The operator counts a failure for 15 minutes after a new start."""


def check_until_right(
    check: Callable[[], tuple[Exit, tuple[Problem, ...]]], log: Path, folders: Iterable[Path], work_dir: Path
) -> Exit:
    """Check again until a start would succeed. End only with a result that differs from the last one.

    A check that fails as before does not end. It runs again when a file in ``folders`` changes, and every few minutes.
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


class Starts:
    """The starts that one process of a driver tries. ``is_over`` returns True once the process should end.

    The refusal that the container's last process ended with is in the work folder.
    """

    def __init__(self, folders: Iterable[Path], work_dir: Path, is_over: Callable[[], bool]) -> None:
        self._folders = tuple(folders)
        self._is_over = is_over
        self._file = work_dir / "last-refusal"
        self._last = self._file.read_text("utf-8") if self._file.is_file() else ""
        # A process that ends for another reason leaves another message in the status.
        self._file.unlink(missing_ok=True)
        self._followers: list[SecretFollower] = []
        self._wait_s = _AGAIN_S
        self._deadline = time.monotonic() + _STAY_S

    def begin(self) -> None:
        """Note what the files are before a start reads them."""
        self._followers = [SecretFollower(folder) for folder in self._folders]

    def may_try_again(self, refusal: str) -> bool:
        """Wait for a changed file and return True. Return False at once if the container should end with the refusal.

        It should end with one that the status does not have, and with a known one after ten minutes.
        """
        left_s = self._deadline - time.monotonic()
        if refusal != self._last or left_s <= 0:
            self._file.write_text(refusal, "utf-8")
            return False
        _log.info("the start is refused as before, and is tried again when a Secret or the manifest changes")
        _wait(self._followers, min(self._wait_s, left_s), self._is_over)
        self._wait_s = min(2 * self._wait_s, _MOST_S)
        return True


def driver_starts(manifest: Path, secrets: Path | None, work_dir: Path, is_over: Callable[[], bool]) -> Starts | None:
    """Return the starts of a driver, None outside of a pod."""
    if not os.environ.get(TERMINATION_LOG) or secrets is None:
        return None
    return Starts(mounted(manifest, secrets), work_dir, is_over)


def mounted(manifest: Path, secrets: Path) -> list[Path]:
    """Return the folders in which the manifest and the Secrets are mounted."""
    return [manifest.parent, *(sorted(secrets.iterdir()) if secrets.is_dir() else [])]


def _wait(followers: list[SecretFollower], most_s: float, is_over: Callable[[], bool] = lambda: False) -> None:
    deadline = time.monotonic() + most_s
    while time.monotonic() < deadline and not is_over():
        if any([f.changed() for f in followers]):  # noqa: C419 - all of them look
            return
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
