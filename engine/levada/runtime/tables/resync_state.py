"""The state of one table's resync with a shadow copy."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from levada.runtime.tables.resync_steps import Step, check_step
from levada.runtime.tables.retries import RetryState

if TYPE_CHECKING:
    from concurrent.futures import Future

    from levada.copy.snapshot import SnapshotRows
    from levada.schema import ReplicatedTableSchema
    from levada.schema.storage import TableStorage
    from levada.status import CopyProgress, ErrorProgress, VerifiedProgress
    from levada.values import Lsn


@dataclass(frozen=True, slots=True)
class ShadowCopy:
    """A shadow copy as far as it was made. ``rows`` are set while they are read, ``copied`` afterwards."""

    rows: SnapshotRows | None = None
    copied: CopyProgress | None = None
    lsn: Lsn | None = None
    """The LSN of the copy's snapshot."""
    copied_schema: ReplicatedTableSchema | None = None
    """The schema version as of that snapshot."""
    schema: ReplicatedTableSchema | None = None
    """The schema version of the last batch."""
    storage: TableStorage | None = None
    """The storage that the copy was read from."""
    takes_all: bool = True
    """False if the copy leaves out rows of the source."""
    compared: bool = False
    """True if it was compared with the source and equal, or cannot be compared."""
    verified: VerifiedProgress | None = None
    """The result of that comparison."""

    @property
    def progress(self) -> CopyProgress | None:
        """The progress of the copy, None before it began."""
        return self.copied if self.rows is None else self.rows.progress()


@dataclass(slots=True)
class ShadowVerification:
    """The comparison of a shadow copy with the source, which a thread runs. Set ``cancelled`` to end it.

    The shadow copy receives changes below ``until`` and no others, and none before that is known. ``answer`` is set
    once it has them.
    """

    cancelled: threading.Event = field(default_factory=threading.Event)
    until: Lsn | None = None
    answer: Future[None] | None = None


@dataclass(slots=True)
class ResyncState:
    """The resync of one table.

    Only the resync stage assigns the fields and calls `enter`, `begin_again` and `finish`. Other parts read the fields
    and call the other methods, which are requests to that stage.
    """

    step: Step = Step.NO_COPY
    running: bool = False
    """True while a job has the shadow copy."""
    verification: ShadowVerification | None = None
    """The comparison that is running."""
    outdated: bool = False
    """True if the shadow copy cannot be used and is restarted as soon as its job has ended."""
    cancelled: threading.Event = field(default_factory=threading.Event)
    """Set when the running copy must end early. The thread of the copy waits for it."""
    shadow: ShadowCopy = field(default_factory=ShadowCopy)
    retries: RetryState = field(default_factory=RetryState)
    not_before: float = 0.0
    """The time of the next attempt, in seconds of the monotonic clock."""
    yielded: bool = False
    """True if the table itself had the last batch."""
    error: ErrorProgress | None = None
    """The error of the last attempt."""
    given_up: ErrorProgress | None = None
    """The error after which the last shadow copy was given up."""

    # ---- for every part -------------------------------------------------------------------------------------------

    @property
    def has_copy(self) -> bool:
        """True if there is a shadow copy, or if one is requested."""
        return self.step is not Step.NO_COPY

    @property
    def abandoned(self) -> bool:
        """True if the shadow copy is no longer wanted and waits to be removed."""
        return self.step is Step.ABANDONED

    def is_ahead(self, position: Lsn) -> bool:
        """Return True if the copy's snapshot may be beyond an LSN."""
        return self.step is Step.COPYING or (self.shadow.lsn is not None and self.shadow.lsn > position)

    def request(self) -> None:
        """Request a shadow copy with a new snapshot."""
        self.given_up = None
        if self.has_copy:
            self.restart()
            return
        self.enter(Step.WAITING)
        self.retries.begin_again()
        self.not_before, self.error = 0.0, None

    def restart(self) -> None:
        """Request that the shadow copy is discarded and begins again, as soon as its job has ended."""
        self.outdated = True
        self.cancel_copy()

    def abandon(self) -> None:
        """Request that the shadow copy is removed, as soon as its job has ended."""
        self.enter(Step.ABANDONED)
        self.cancel_copy()

    def cancel_copy(self) -> None:
        """Request the end of the running copy or comparison. It begins again when the table may be copied."""
        self.cancelled.set()
        if self.verification is not None:
            self.verification.cancelled.set()

    # ---- for the resync stage -------------------------------------------------------------------------------------

    def enter(self, step: Step) -> None:
        """Take the next step. Raise ValueError if the transition is not allowed."""
        check_step(self.step, step)
        self.step = step

    def begin_again(self) -> None:
        """Discard the shadow copy and return to the first step."""
        self.enter(Step.WAITING)
        self.outdated, self.shadow = False, ShadowCopy()

    def finish(self) -> None:
        """Forget the shadow copy, which was removed or has replaced the table."""
        self.enter(Step.NO_COPY)
        self.outdated, self.yielded, self.shadow = False, False, ShadowCopy()
