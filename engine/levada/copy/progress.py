"""The progress of a copy. It is counted when a range ends, and can be read from any thread."""

from __future__ import annotations

import threading
import time
from typing import Protocol

from levada.status import CopyProgress


class RunningCopy(Protocol):
    """A running copy, in this process or in another one."""

    def progress(self) -> CopyProgress:
        """Return the current progress. May be called from any thread."""


class CopyMeter:
    """A thread-safe counter of a copy's rows and bytes. The clock starts with the first call of `start`."""

    def __init__(self, total_rows: int | None, total_bytes: int) -> None:
        self._total_rows = total_rows
        self._total_bytes = total_bytes
        self._lock = threading.Lock()
        self._started: float | None = None
        self._rows = self._bytes = self._unrepresentable = 0

    def start(self) -> None:
        """Start the clock, unless it is running."""
        with self._lock:
            self._started = self._started or time.monotonic()

    def add(self, rows: int, size: int, unrepresentable: int) -> None:
        """Add a completed range."""
        with self._lock:
            self._rows += rows
            self._bytes += size
            self._unrepresentable += unrepresentable

    def progress(self) -> CopyProgress:
        """Return the current progress."""
        with self._lock:
            elapsed = 0.0 if self._started is None else time.monotonic() - self._started
            share = min(1.0, self._bytes / self._total_bytes) if self._total_bytes else 1.0
            return CopyProgress(
                rows=self._rows,
                bytes=self._bytes,
                total_rows=self._total_rows,
                total_bytes=self._total_bytes,
                percent=100 * share,
                rows_per_second=self._rows / elapsed if elapsed else 0.0,
                seconds_left=elapsed * (1 - share) / share if share else None,
                unrepresentable=self._unrepresentable,
            )
