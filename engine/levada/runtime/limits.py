"""Waits and sizes of the runtime that no manifest sets. Times are in seconds."""

from __future__ import annotations

from dataclasses import dataclass, field

from levada.capture.in_progress import InProgressLimits
from levada.capture.message_stream import SliceLimits
from levada.copy.guard import LockLimits
from levada.copy.plan import RangeLimits
from levada.segments.limits import BatchLimits
from levada.verify.ranges import MOST_ROWS


@dataclass(frozen=True, slots=True)
class CutLimits:
    """The waits of cuts of all tables.

    Tags that could not be removed or compared are tried again after ``retry_s``, and so are cuts that could not be
    stored. The tags of every table are compared with the stored cuts every ``check_every_s``. A request for a cut waits
    ``answer_s`` for its answer.
    """

    retry_s: float = 30.0
    check_every_s: float = 600.0
    answer_s: float = 20.0


@dataclass(frozen=True, slots=True)
class VerificationLimits:
    """The attempts and waits of verifications.

    A verification is tried with ``attempts`` snapshots, if the table changes or does not keep up. A repair writes rows
    ``rounds`` times, as each time a limited number of keys is examined. A verification of the schedule waits
    ``patience_s`` for open transactions. One that is forgotten, for example a prepared one, is reported then. A
    comparison by ranges takes at most ``range_rows`` rows at a time, whose hashes may be in memory.
    """

    attempts: int = 5
    rounds: int = 20
    patience_s: float = 3600.0
    range_rows: int = MOST_ROWS


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one pipeline.

    The order of a dedicated copy is read every ``order_poll_s``, and the slot's lag every ``lag_sample_s``. A clean-up
    waits ``session_end_s`` for the database session of an engine that has ended. Figures that are not published again
    for ``aging_s`` grow by the clock. No further small table is copied from a snapshot that is older than
    ``shared_snapshot_s``, because it keeps the source from removing dead rows. A replica identity that the event
    trigger has lent is reported after ``lent_s``, and logged once in such a time.
    """

    ranges: RangeLimits = field(default_factory=RangeLimits)
    locks: LockLimits = field(default_factory=LockLimits)
    batches: BatchLimits = field(default_factory=BatchLimits)
    slices: SliceLimits = field(default_factory=SliceLimits)
    in_progress: InProgressLimits = field(default_factory=InProgressLimits)
    cuts: CutLimits = field(default_factory=CutLimits)
    verifications: VerificationLimits = field(default_factory=VerificationLimits)
    order_poll_s: float = 2.0
    lag_sample_s: float = 5.0
    session_end_s: float = 30.0
    aging_s: float = 15.0
    shared_snapshot_s: float = 5.0
    lent_s: float = 60.0
