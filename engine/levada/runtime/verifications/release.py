"""The release of a table that a verification holds."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Release:
    """Releases a table once, at the latest after ``limit_s`` seconds."""

    def __init__(self, release: Callable[[], None], limit_s: float) -> None:
        self._release = release
        self._lock = threading.Lock()
        self.done = False
        self._timer = threading.Timer(limit_s, self.now)
        self._timer.daemon = True
        self._timer.start()

    def keep(self) -> bool:
        """Hold the table without a limit. Return False if it was released before."""
        with self._lock:
            self._timer.cancel()
            return not self.done

    def now(self) -> bool:
        """Release the table. Return False if it was released before."""
        with self._lock:
            first, self.done = not self.done, True
        if first:
            self._timer.cancel()
            self._release()
        return first
