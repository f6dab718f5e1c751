"""The kinds of jobs on a table."""

from __future__ import annotations

from enum import StrEnum


class Job(StrEnum):
    """A kind of work on one table at its destination. The liveness probe checks every kind that is `judged`."""

    COPY = "copy"
    READ_WATERMARK = "look"
    APPLY = "apply"
    MOVE = "move"
    MAINTAIN = "maintain"
    APPLY_TO_SHADOW = "follow"
    SWAP = "swap"
    HOLD = "hold"
    TAG = "tag"

    @property
    def judged(self) -> bool:
        """Return True if the process is restarted when such a job blocks pending changes for too long.

        A copy, a hold and a move of the rows of a partition are exempt. Exporting a snapshot at the source and indexing
        the copied rows may take long.
        """
        return self not in (Job.COPY, Job.HOLD, Job.MOVE)
