"""The rules for the next step of a resync with a shadow copy, and the reports of its jobs.

The rules are pure: no store, no destination, no thread, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from levada.runtime.inbox import Message
from levada.runtime.job import Job
from levada.runtime.tables.phases import STREAMING
from levada.runtime.tables.resync_steps import Step
from levada.schema import ReplicatedTableSchema
from levada.stores.phases import Errored
from levada.values import Lsn

if TYPE_CHECKING:
    from levada.copy.snapshot import SnapshotRows
    from levada.runtime.tables.record import TableRecord
    from levada.runtime.tables.resync_state import ShadowCopy
    from levada.values import TableId


class ResyncJob(StrEnum):
    """The kinds of jobs on a shadow copy."""

    COPY = "copy"
    APPLY = "apply"
    VERIFY = "verify"
    SWAP = "swap"
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class ResyncStarted(Message):
    """A shadow copy has exported its snapshot, as of ``lsn``, and begins to read."""

    table: TableId
    rows: SnapshotRows
    lsn: Lsn


@dataclass(frozen=True, slots=True)
class ResyncEnded(Message):
    """A job has ended. ``outcome`` is the value that it returned or the exception that it raised."""

    table: TableId
    job: ResyncJob
    outcome: object


def stays_readable(record: TableRecord) -> bool:
    """Return True if the table can stay readable and up to date while a shadow copy is made."""
    return record.phase.name in STREAMING


def resyncs_to_start(
    tables: Iterable[TableRecord],
    at_once: int,
    now: float,
    may_begin: Callable[[TableRecord], bool] = lambda record: True,
) -> list[TableRecord]:
    """Return the tables whose shadow copies begin now, at most ``at_once`` minus the running copies.

    ``now`` is of the monotonic clock, in seconds. ``may_begin`` returns False for a table whose copy has to wait.
    """
    known = list(tables)
    return [r for r in known if _is_waiting(r, now) and may_begin(r)][: max(0, at_once - copies_running(known))]


def copies_running(tables: Iterable[TableRecord]) -> int:
    """Return the number of copies that run now. Shadow copies count until they have replaced their tables.

    Copies that are made one after the other from one snapshot count as one.
    """
    running = [r for r in tables if r.busy is Job.COPY or r.resync.step not in (Step.NO_COPY, Step.WAITING)]
    return len({r.copy.group or -int(r.id) for r in running})


def is_outdated(shadow: ShadowCopy, newest: ReplicatedTableSchema | None) -> bool:
    """Return True if the table's columns changed after the copy's snapshot. A shadow copy has no schema evolution."""
    if newest is None or shadow.copied_schema is None or shadow.lsn is None or newest.snapshot_id <= shadow.lsn:
        return False
    return _shape(newest) != _shape(shadow.copied_schema)


def _is_waiting(record: TableRecord, now: float) -> bool:
    resync = record.resync
    if resync.step is not Step.WAITING or resync.running:
        return False
    serves = stays_readable(record) or isinstance(record.phase, Errored)
    return serves and not record.suspended and now >= resync.not_before


def _shape(version: ReplicatedTableSchema) -> tuple[object, ...]:
    return tuple((c.attnum, c.name, c.type) for c in version.columns), version.key
