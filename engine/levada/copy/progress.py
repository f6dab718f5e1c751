"""How far a copy has come, counted as its ranges end and read from any thread."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """A copy at one moment. Bytes are those of the source's storage, TOAST included, and estimated.

    ``percent`` is of those bytes, 0 to 100. ``total_rows`` is PostgreSQL's estimate, None where it has none.
    ``unrepresentable`` counts the values that became NULL.
    """

    rows: int
    bytes: int
    total_rows: int | None
    total_bytes: int | None
    percent: float
    rows_per_second: float
    seconds_left: float | None
    unrepresentable: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "rows": self.rows,
            "bytes": self.bytes,
            "totalRows": self.total_rows,
            "totalBytes": self.total_bytes,
            "percent": round(self.percent, 1),
            "rowsPerSecond": round(self.rows_per_second, 1),
            "secondsLeft": None if self.seconds_left is None else round(self.seconds_left, 1),
        }


class CopyUnderWay(Protocol):
    """A copy that is being made, here or elsewhere."""

    def progress(self) -> CopyProgress:
        """Return how far it has come, from any thread."""


class CopyMeter:
    """Counts; safe to use from several threads. The clock starts with the first use of `start`."""

    def __init__(self, total_rows: int | None, total_bytes: int) -> None:
        self._total_rows = total_rows
        self._total_bytes = total_bytes
        self._lock = threading.Lock()
        self._started: float | None = None
        self._rows = self._bytes = self._unrepresentable = 0

    def start(self) -> None:
        """Start the clock, unless it runs."""
        with self._lock:
            self._started = self._started or time.monotonic()

    def add(self, rows: int, size: int, unrepresentable: int) -> None:
        """Count a range that has ended."""
        with self._lock:
            self._rows += rows
            self._bytes += size
            self._unrepresentable += unrepresentable

    def progress(self) -> CopyProgress:
        """Return how far the copy has come."""
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
