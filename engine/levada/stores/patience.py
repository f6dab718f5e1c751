"""The time that a storage waits for a server that does not answer."""

from __future__ import annotations

import threading
import time
from typing import Final

from tenacity import RetryCallState

_AFTER_STOP_S: Final = 2.0
"""Seconds to wait once the pipeline stops, in all calls together. What is not written then is as after a kill."""


class Patience:
    """Decides when the attempts of a call end, and waits between them. Another thread may end the waits.

    ``first_s`` is the time in seconds for a server that has not answered before, ``again_s`` for one that has.
    """

    def __init__(self, first_s: float, again_s: float) -> None:
        self._first_s = first_s
        self._again_s = again_s
        self._stopping = threading.Event()
        self._stop_at = float("inf")
        self.reached = False
        """True once the server has answered. Only the storage sets it."""

    def stop_waiting(self) -> None:
        """Let the calls of now and later end soon if the server does not answer. From any thread."""
        if not self._stopping.is_set():
            self._stop_at = time.monotonic() + _AFTER_STOP_S
            self._stopping.set()

    @property
    def over(self) -> bool:
        """True if no call is tried twice any more."""
        return time.monotonic() >= self._stop_at

    def gives_up(self, state: RetryCallState) -> bool:
        """Return True if an attempt that failed was the last one of its call."""
        longest = self._again_s if self.reached else self._first_s
        return self.over or (state.seconds_since_start or 0.0) >= longest

    def pause(self, seconds: float) -> None:
        """Wait before the next attempt, until the pipeline stops. After that, waits are short."""
        if self._stopping.is_set():
            time.sleep(min(seconds, _AFTER_STOP_S / 4))
        else:
            self._stopping.wait(seconds)
