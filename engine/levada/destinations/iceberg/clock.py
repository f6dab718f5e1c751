"""The machine's clock, compared with the source's before each commit.

Iceberg stores the time of each commit, and rejects one that is older. So a single commit by a clock that is ahead
makes a table unwritable until that time has come.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from levada.errors import LevadaError, Transient
from levada.private import replace_file

if TYPE_CHECKING:
    from levada.destinations.context import Source

_log = logging.getLogger(__name__)

LIMIT_S: Final = 300.0
"""The seconds by which the clock may be ahead. Kerberos allows as many."""
JUMP_S: Final = 30.0
"""A change of the clock, in seconds, after which it is compared again."""
EVERY_S: Final = 3600.0
"""The seconds after which it is compared again without such a change, because a clock may also be slow or fast."""
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_AGAIN_S: Final = 60.0
"""Seconds until a source that did not answer is asked again."""


def _steady() -> float:
    # The monotonic clock stands still while a laptop sleeps.
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


@dataclass(slots=True)
class Clock:
    """A clock that knows by how much it is ahead of the source's. Thread-safe.

    The source is asked at the first commit, each hour, and after the clock has jumped. Without an answer, the last
    comparison and the jump since then count. ``steady`` is a clock that cannot be set. With a file for its ``record``,
    the last comparison of an earlier process counts too, until the machine starts again.
    """

    source: Source | None = None
    wall: Callable[[], float] = time.time
    steady: Callable[[], float] = _steady
    record: Path | None = None
    _ahead_s: float = 0.0
    _drift: float | None = None
    _next_at: float = 0.0
    _again_at: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        if (kept := _read(self.record)) is not None:
            self._ahead_s, self._drift = kept

    def check(self, what: str) -> None:
        """Raise Transient ``destination_clock`` if the clock is minutes ahead of the source's."""
        ahead = self.ahead_s()
        if ahead > LIMIT_S:
            raise Transient(
                "destination_clock",
                f"{what}: the clock of this machine is {ahead / 60:,.0f} minutes ahead of the source's, and Iceberg"
                " would reject every commit until that time",
                hint="correct the clock of this machine, or that of the source's server",
            )

    def latest_ms(self) -> int:
        """Return the latest time in milliseconds at which `check` lets any machine commit now, or soon after."""
        return int((self.wall() - self.ahead_s() + LIMIT_S) * 1000)

    def ahead_s(self) -> float:
        """Return the seconds by which the clock is ahead of the source's. They are negative if it is behind."""
        with self._lock:
            now = self.steady()
            if now >= self._next_at or abs(self._jump()) >= JUMP_S:
                self._compare(now)
            return self._ahead_s + self._jump()

    def _jump(self) -> float:
        return 0.0 if self._drift is None else self.wall() - self.steady() - self._drift

    def _compare(self, now: float) -> None:
        if self._drift is not None and now < self._again_at:
            return
        try:
            ahead = 0.0 if self.source is None else self.wall() - self.source.clock()
        except LevadaError as error:
            # The source is away. Commits do not wait for it.
            self._again_at = now + _AGAIN_S
            if self._drift is None:
                self._drift = self.wall() - self.steady()
            _log.info("the clock is not compared with the source's: %s", error.message)
            return
        self._ahead_s, self._drift = ahead, self.wall() - self.steady()
        self._next_at, self._again_at = now + EVERY_S, 0.0
        if self.source is not None:
            _write(self.record, self._ahead_s, self._drift)


def _boot() -> str:
    """Return the ID of the machine's start, from which the steady clock counts. Empty if it has none."""
    try:
        return _BOOT.read_text().strip()
    except OSError:
        return ""


def _read(record: Path | None) -> tuple[float, float] | None:
    """Return the last comparison since the machine's start: the seconds ahead, and the drift of both clocks then."""
    try:
        kept = json.loads(record.read_text()) if record is not None else {}
        return (float(kept["ahead"]), float(kept["drift"])) if kept["boot"] == _boot() != "" else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _write(record: Path | None, ahead: float, drift: float) -> None:
    if record is None or not (boot := _boot()):
        return
    try:
        replace_file(record, json.dumps({"boot": boot, "ahead": ahead, "drift": drift}).encode())
    except OSError as error:
        _log.info("the comparison of the clock is not kept: %s", error)
