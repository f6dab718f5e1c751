"""The state of a resync with a shadow copy, and the rules for its next step.

The rules are pure: no store, no destination, no thread, no clock.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from levada.destinations import Destination, Ordering
from levada.runtime.job import Job
from levada.runtime.tables.phases import STREAMING
from levada.schema import ReplicatedTableSchema
from levada.schema.storage import TableStorage
from levada.status import CopyProgress
from levada.stores.phases import Errored
from levada.values import Lsn

if TYPE_CHECKING:
    from levada.copy.snapshot import SnapshotRows
    from levada.runtime.tables.record import TableRecord
    from levada.status import ErrorProgress
    from levada.values import TableId


class Step(StrEnum):
    """The steps of a shadow copy. A copy that cannot be used goes back to the first step."""

    WAITING = "Waiting"
    """The copy waits until fewer copies run."""
    COPYING = "Copying"
    CATCHING_UP = "CatchingUp"
    """Changes since the copy's snapshot are applied to it, until it has all changes that the table has."""


@dataclass(slots=True)
class Resync:
    """The shadow copy of one table. Only the supervisor's thread changes it.

    While ``running``, a job has it. If ``outdated``, it cannot be used and is restarted. If ``abandoned``, it is
    removed. ``cancel`` ends its copy. The next attempt starts at ``not_before``, in seconds of the monotonic clock.
    ``yielded`` is True if the table itself had the last batch.
    """

    step: Step = Step.WAITING
    running: bool = False
    outdated: bool = False
    abandoned: bool = False
    cancel: threading.Event = field(default_factory=threading.Event)
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
    attempts: int = 0
    not_before: float = 0.0
    yielded: bool = False
    error: ErrorProgress | None = None

    def restart(self) -> None:
        """Discard the shadow copy and start with a new snapshot, as soon as its job has ended."""
        self.outdated = True
        self.cancel.set()

    def is_ahead(self, position: Lsn) -> bool:
        """Return True if the copy's snapshot may be beyond an LSN."""
        return self.step is Step.COPYING or (self.lsn is not None and self.lsn > position)

    def reset(self) -> None:
        """Return to the first step."""
        self.step, self.outdated = Step.WAITING, False
        self.rows = self.copied = self.lsn = self.copied_schema = self.schema = self.storage = None

    @property
    def copy(self) -> CopyProgress | None:
        """The progress of the copy, None before it began."""
        return self.copied if self.rows is None else self.rows.progress()


class ResyncJob(StrEnum):
    """The kinds of jobs on a shadow copy."""

    COPY = "copy"
    APPLY = "apply"
    SWAP = "swap"
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class ResyncStarted:
    """A shadow copy has exported its snapshot, as of ``lsn``, and begins to read."""

    table: TableId
    rows: SnapshotRows
    lsn: Lsn


@dataclass(frozen=True, slots=True)
class ResyncEnded:
    """A job has ended. ``outcome`` is the value that it returned or the exception that it raised."""

    table: TableId
    job: ResyncJob
    outcome: object


def stays_readable(record: TableRecord) -> bool:
    """Return True if the table can stay readable and up to date while a shadow copy is made."""
    return record.phase.name in STREAMING


def resyncs_to_start(tables: Iterable[TableRecord], at_once: int, now: float) -> list[TableRecord]:
    """Return the tables whose shadow copies begin now, at most ``at_once`` minus the running copies.

    ``now`` is of the monotonic clock, in seconds.
    """
    known = list(tables)
    return [r for r in known if _is_waiting(r, now)][: max(0, at_once - copies_running(known))]


def copies_running(tables: Iterable[TableRecord]) -> int:
    """Return the number of tables that are copied now. Shadow copies count until they have replaced their tables."""
    return sum(r.busy is Job.COPY or (r.resync is not None and r.resync.step is not Step.WAITING) for r in tables)


def is_outdated(resync: Resync, newest: ReplicatedTableSchema | None) -> bool:
    """Return True if the table's columns changed after the copy's snapshot. A shadow copy has no schema evolution."""
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
    """Return True if the destination supports shadow copies. With the ordering PIPELINE it does not."""
    return destination.capabilities.replacement and destination.capabilities.ordering is Ordering.TABLE
