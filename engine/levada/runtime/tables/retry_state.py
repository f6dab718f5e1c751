"""The failed attempts of one table."""

from __future__ import annotations

from dataclasses import dataclass

from levada.runtime.config import RetryLimits
from levada.runtime.tables.retries import is_failure


@dataclass(slots=True)
class RetryState:
    """The failed attempts of one table, from which the delay of the next one follows. Its methods write it."""

    attempts: int = 0
    """The number of failed attempts in a row."""
    lost_copies: int = 0
    """The number of resyncs in a row because the table had missed changes."""
    lost_copied_at: float = float("-inf")
    """The time of the last such resync, in seconds of the monotonic clock."""

    def failed(self, error: BaseException) -> int:
        """Count an error and return the number of the attempt, from 1."""
        self.attempts += is_failure(error)
        return max(1, self.attempts)

    def begin_again(self) -> None:
        """Count attempts from the beginning, after a success or a user's request."""
        self.attempts = 0

    def resynced_after_loss(self, limits: RetryLimits, now: float) -> None:
        """Count a resync because the table had missed changes, at the time ``now`` of the monotonic clock."""
        if now - self.lost_copied_at > limits.max_delay_s:
            self.lost_copies = 0
        self.lost_copies += 1
        self.lost_copied_at = now
