"""Jobs that have a table."""

from __future__ import annotations

from enum import StrEnum


class Job(StrEnum):
    """One kind of work on one table at its destination. Liveness judges every kind that is not said to be exempt."""

    COPY = "copy"
    READ_WATERMARK = "look"
    APPLY = "apply"
    MAINTAIN = "maintain"
    APPLY_TO_SHADOW = "follow"
    SWAP = "swap"

    @property
    def judged(self) -> bool:
        """Return True if a job that does not end, while changes wait for it, is a reason to restart the process.

        A copy is exempt. A source may take long to hand out a snapshot, and a destination to index what was copied.
        """
        return self is not Job.COPY
