"""Checks and starts in a pod, which report each failure once and are repeated when a Secret or the manifest changes.

Kubernetes reads a container's message when the container ends. It delays the restart of a container that fails
repeatedly by up to five minutes. So a container ends only with an error that differs from its previous one.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from levada.postgres.problems import Problem, Severity
from levada.runtime.host.secret_watcher import SecretWatcher

_log = logging.getLogger(__name__)

TERMINATION_LOG: Final = "LEVADA_TERMINATION_LOG"
"""The variable with the path of the file whose content Kubernetes puts into the pod's status. Set only in pods."""
_MAX_BYTES: Final = 4096
"""The limit of Kubernetes: https://kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure/"""


@dataclass(frozen=True, slots=True)
class PodWaits:
    """The waits of a pod, in seconds.

    The files are compared every ``poll_s``. An attempt that fails as before is repeated after ``first_s``, and then
    after twice the last wait, up to ``most_s``. A start with a known error is repeated for ``stay_s``. The operator
    counts a failure for 15 minutes.
    """

    poll_s: float = 1.0
    first_s: float = 60.0
    most_s: float = 300.0
    stay_s: float = 600.0


_WAITS: Final = PodWaits()


def check_until_ok(
    check: Callable[[], tuple[Problem, ...]],
    log: Path,
    folders: Iterable[Path],
    work_dir: Path,
    waits: PodWaits = _WAITS,
) -> tuple[Problem, ...]:
    """Repeat the check until it finds no error. Return early with a result that differs from the previous one.

    A check that fails as before does not end. It runs again when a file in ``folders`` changes, and every few minutes.
    ``log`` is the file for the container's message.
    """
    last, wait_s, watched = work_dir / "last-check", waits.first_s, tuple(folders)
    while True:
        # Created before the check, so that a change during the check is noticed.
        watchers = [SecretWatcher(folder) for folder in watched]
        problems = check()
        if not any(p.severity is Severity.ERROR for p in problems):
            last.unlink(missing_ok=True)
            return problems
        text = "".join(_lines(problems))
        if not last.is_file() or last.read_text("utf-8") != text:
            last.write_text(text, "utf-8")
            log.write_text(text, "utf-8")
            return problems
        _log.info("the check fails as before. It runs again when a Secret or the manifest changes")
        _wait(watchers, wait_s, waits.poll_s)
        wait_s = min(2 * wait_s, waits.most_s)


class Starts:
    """The start attempts of one driver process. ``is_over`` returns True once the process should end.

    The work folder has the error with which the container's previous process ended.
    """

    def __init__(
        self, folders: Iterable[Path], work_dir: Path, is_over: Callable[[], bool], waits: PodWaits = _WAITS
    ) -> None:
        self._waits = waits
        self._folders = tuple(folders)
        self._is_over = is_over
        self._file = work_dir / "last-refusal"
        self._last = self._file.read_text("utf-8") if self._file.is_file() else ""
        # If the process ends for another reason, the pod's status has another message.
        self._file.unlink(missing_ok=True)
        self._watchers: list[SecretWatcher] = []
        self._wait_s = waits.first_s
        self._deadline = time.monotonic() + waits.stay_s

    def begin(self) -> None:
        """Record the files' content before a start reads them."""
        self._watchers = [SecretWatcher(folder) for folder in self._folders]

    def may_try_again(self, refusal: str) -> bool:
        """Wait for a changed file and return True. Return False, without waiting, if the container should end.

        It should end with an error that is not in the pod's status yet, and after ten minutes with a known one.
        """
        left_s = self._deadline - time.monotonic()
        if refusal != self._last or left_s <= 0:
            self._file.write_text(refusal, "utf-8")
            return False
        _log.info("the start fails as before. It is repeated when a Secret or the manifest changes")
        _wait(self._watchers, min(self._wait_s, left_s), self._waits.poll_s, self._is_over)
        self._wait_s = min(2 * self._wait_s, self._waits.most_s)
        return True


def driver_starts(
    manifest: Path | None, secrets: Path | None, work_dir: Path, is_over: Callable[[], bool]
) -> Starts | None:
    """Return the start attempts of a driver, or None outside of a pod."""
    if not os.environ.get(TERMINATION_LOG) or manifest is None or secrets is None:
        return None
    return Starts(mounted(manifest, secrets), work_dir, is_over)


def mounted(manifest: Path, secrets: Path) -> list[Path]:
    """Return the folders in which the manifest and the Secrets are mounted."""
    return [manifest.parent, *(sorted(secrets.iterdir()) if secrets.is_dir() else [])]


def _wait(
    watchers: list[SecretWatcher], most_s: float, poll_s: float, is_over: Callable[[], bool] = lambda: False
) -> None:
    deadline = time.monotonic() + most_s
    while time.monotonic() < deadline and not is_over():
        if any([w.changed() for w in watchers]):  # noqa: C419 - each must be checked
            return
        time.sleep(poll_s)


def _lines(problems: Iterable[Problem]) -> Iterator[str]:
    """Yield the errors in the format that the operator parses, as many as fit into the limit."""
    room = _MAX_BYTES
    for problem in (p for p in problems if p.severity is Severity.ERROR):
        hint = problem.hint.replace("\n", " ")
        line = f"error: {problem.message} [{problem.code}]\n" + (f"  hint: {hint}\n" if hint else "")
        room -= len(line.encode())
        if room >= 0:
            yield line
