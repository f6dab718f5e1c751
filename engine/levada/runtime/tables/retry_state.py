"""The failed attempts of one table."""

from __future__ import annotations

from dataclasses import dataclass

from levada.runtime.tables.retries import is_failure


@dataclass(slots=True)
class RetryState:
    """The failed attempts of one table, from which the delay of the next one follows. Its methods write it."""

    attempts: int = 0
    """The number of failed attempts in a row."""
    alone: int = 0
    """The number of these after which another table was written, while this one failed again."""
    failed_at: float | None = None
    """The time of the last failure, in seconds of the monotonic clock."""
    reading: bool = False
    """True if the last failure was that of reading the watermark."""

    def failed(self, error: BaseException, written_at: float, now: float, *, reading: bool = False) -> int:
        """Count an error and return the number of the attempt, from 1.

        ``written_at`` is the time at which a table was last written, ``now`` that of the error, of the monotonic clock.
        """
        self.attempts += is_failure(error)
        self.alone += self.failed_at is not None and written_at > self.failed_at
        self.failed_at, self.reading = now, reading
        return max(1, self.attempts)

    def begin_again(self) -> None:
        """Count attempts from the beginning, after a success or a user's request."""
        self.attempts, self.alone, self.failed_at = 0, 0, None
