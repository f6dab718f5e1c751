"""A table that is copied again while it streams: what is known of its new copy, and what is done next.

No store, no destination, no thread, no clock.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from levada.copy.progress import CopyProgress
from levada.destinations import Destination, Ordering
from levada.runtime.job import Job
from levada.runtime.tables.phases import STREAMING
from levada.schema import ReplicatedTableSchema
from levada.schema.storage import TableStorage
from levada.stores.phases import Errored
from levada.values import Lsn

if TYPE_CHECKING:
    from levada.copy.snapshot import SnapshotRows
    from levada.runtime.progress import ErrorProgress
    from levada.runtime.tables.record import TableRecord
    from levada.values import TableId


class Step(StrEnum):
    """How far a new copy is. From any step it goes back to the first when what was made is of no use."""

    WAITING = "Waiting"
    """For its turn to be copied."""
    COPYING = "Copying"
    CATCHING_UP = "CatchingUp"
    """What was staged since the copy's snapshot is applied to it, until it has all that the table has."""


@dataclass(slots=True)
class Resync:
    """The new copy of one table; the supervisor's thread alone changes it.

    ``running``: a job has it. ``outdated``: it is of no use, and is begun again. ``abandoned``: it is removed.
    ``cancel`` ends its copy. ``not_before`` is of the monotonic clock, in seconds. ``yielded``: the table had the last
    turn.
    """

    step: Step = Step.WAITING
    running: bool = False
    outdated: bool = False
    abandoned: bool = False
    cancel: threading.Event = field(default_factory=threading.Event)
    rows: SnapshotRows | None = None
    copied: CopyProgress | None = None
    lsn: Lsn | None = None
    """The snapshot of the copy."""
    copied_schema: ReplicatedTableSchema | None = None
    """The version as of that snapshot."""
    schema: ReplicatedTableSchema | None = None
    """The version that was applied last."""
    storage: TableStorage | None = None
    """What the copy was read from."""
    attempts: int = 0
    not_before: float = 0.0
    yielded: bool = False
    error: ErrorProgress | None = None

    def restart(self) -> None:
        """Let what was made so far go, and begin again with a copy."""
        self.outdated = True
        self.cancel.set()

    def is_ahead(self, position: Lsn) -> bool:
        """Return True if the copy's snapshot may be beyond a position of the WAL."""
        return self.step is Step.COPYING or (self.lsn is not None and self.lsn > position)

    def reset(self) -> None:
        """Go back to the first step."""
        self.step, self.outdated = Step.WAITING, False
        self.rows = self.copied = self.lsn = self.copied_schema = self.schema = self.storage = None

    @property
    def copy(self) -> CopyProgress | None:
        """How far its copy is, or came; None before it began."""
        return self.copied if self.rows is None else self.rows.progress()


class ResyncJob(StrEnum):
    """What is done of a new copy in a pool's thread."""

    COPY = "copy"
    APPLY = "apply"
    SWAP = "swap"
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class ResyncStarted:
    """A copy beside a table has its snapshot, as of ``lsn``, and begins to read."""

    table: TableId
    rows: SnapshotRows
    lsn: Lsn


@dataclass(frozen=True, slots=True)
class ResyncEnded:
    """A job has ended: with what it returned, or with its error."""

    table: TableId
    job: ResyncJob
    outcome: object


def stays_readable(record: TableRecord) -> bool:
    """Tell whether the destination has a table that may serve while it is copied again, and go on."""
    return record.phase.name in STREAMING


def resyncs_to_start(tables: Iterable[TableRecord], at_once: int, now: float) -> list[TableRecord]:
    """Return the tables whose new copies begin now; ``now`` is of the monotonic clock."""
    known = list(tables)
    return [r for r in known if _is_waiting(r, now)][: max(0, at_once - copies_running(known))]


def copies_running(tables: Iterable[TableRecord]) -> int:
    """Return how many tables are copied now, for the first time or beside themselves, catching up included."""
    return sum(r.busy is Job.COPY or (r.resync is not None and r.resync.step is not Step.WAITING) for r in tables)


def is_outdated(resync: Resync, newest: ReplicatedTableSchema | None) -> bool:
    """Tell whether the table's columns changed after the copy's snapshot, which no copy beside a table follows."""
    if newest is None or resync.copied_schema is None or resync.lsn is None or newest.snapshot_id <= resync.lsn:
        return False
    return _shape(newest) != _shape(resync.copied_schema)


def _is_waiting(record: TableRecord, now: float) -> bool:
    resync = record.resync
    if resync is None or resync.step is not Step.WAITING or resync.running or resync.abandoned:
        return False
    serves = stays_readable(record) or isinstance(record.phase, Errored)
    return serves and not record.suspended and now >= resync.not_before


def _shape(version: ReplicatedTableSchema) -> tuple[object, ...]:
    return tuple((c.attnum, c.name, c.type) for c in version.columns), version.key


def can_replace(destination: Destination) -> bool:
    """Tell whether the destination can copy a table again beside itself."""
    return destination.capabilities.replacement and destination.capabilities.ordering is Ordering.TABLE
