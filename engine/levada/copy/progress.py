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

    def __init__(self, total_rows: int | None, total_bytes: int, ranges: int) -> None:
        self._total_rows = total_rows
        self._total_bytes = total_bytes
        self._lock = threading.Lock()
        self._started: float | None = None
        self._rows = self._bytes = self._unrepresentable = self._finished = 0
        self._ranges = ranges
        self._earlier_rows = self._earlier_bytes = 0
        self._resumable = False
        self._note = ""

    def describe(self, *, resumable: bool, note: str) -> None:
        """Set whether the copy continues after an interruption, and the note about that."""
        with self._lock:
            self._resumable, self._note = resumable, note

    def plan(self, size: int, ranges: int) -> None:
        """Set the bytes and the number of the ranges, which may be those of an earlier plan."""
        with self._lock:
            self._total_bytes, self._ranges = size, ranges

    def start(self) -> None:
        """Start the clock, unless it is running."""
        with self._lock:
            self._started = self._started or time.monotonic()

    def add(self, rows: int, size: int, unrepresentable: int, *, earlier: bool = False) -> None:
        """Add a completed range. ``earlier`` is True if another attempt has read it, which does not count as speed."""
        with self._lock:
            self._finished += 1
            self._rows += rows
            self._bytes += size
            self._unrepresentable += unrepresentable
            if earlier:
                self._earlier_rows += rows
                self._earlier_bytes += size

    def add_unrepresentable(self, values: int) -> None:
        """Add values of rows that belong to completed ranges."""
        with self._lock:
            self._unrepresentable += values

    def progress(self) -> CopyProgress:
        """Return the current progress."""
        with self._lock:
            elapsed = 0.0 if self._started is None else time.monotonic() - self._started
            share = min(1.0, self._bytes / self._total_bytes) if self._total_bytes else 1.0
            # What this attempt has read, and what it has to read.
            done = share - (self._earlier_bytes / self._total_bytes if self._total_bytes else 0.0)
            return CopyProgress(
                rows=self._rows,
                bytes=self._bytes,
                total_rows=self._total_rows,
                total_bytes=self._total_bytes,
                percent=100 * share,
                rows_per_second=(self._rows - self._earlier_rows) / elapsed if elapsed else 0.0,
                seconds_left=elapsed * (1 - share) / done if done > 0 else None,
                ranges=self._ranges,
                ranges_finished=self._finished,
                resumable=self._resumable,
                note=self._note,
                unrepresentable=self._unrepresentable,
            )
