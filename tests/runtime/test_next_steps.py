"""The pure rules that decide which phase, copy or batch of a table comes next."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from levada.apply.backlog import Pending
from levada.runtime.job import Job
from levada.runtime.tables.record import TableRecord
from levada.runtime.tables.resync_steps import Step
from levada.runtime.tables.rules import (
    continues,
    copies_to_start,
    needs_resync,
    next_phase,
    retry_is_due,
    wants_apply,
)
from levada.status import RetryPolicy
from levada.stores.phases import (
    Catchup,
    DataSync,
    Errored,
    FinishedCopy,
    Init,
    Ready,
    SyncDone,
    SyncWait,
    TableReplicationPhase,
)
from levada.values import Lsn, QualifiedTable, TableId

LSN, LATER = Lsn(100), Lsn(150)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
PARKED = Errored("code", "reason", "", RetryPolicy.TIMED_RETRY, next_retry=NOW)
SOME = Pending(1, 1, 1, 1)


def record(phase: TableReplicationPhase, *, number: int = 1, suspended: bool = False) -> TableRecord:
    """Return a table in a phase."""
    return TableRecord(TableId(number), QualifiedTable("public", f"t{number}"), phase, suspended)


@pytest.mark.parametrize(
    ("phase", "position", "staged", "expected"),
    [
        (FinishedCopy(LSN), Lsn(0), Lsn(0), SyncWait(LSN)),
        (SyncWait(LSN), LSN, Lsn(99), None),
        (SyncWait(LSN), LSN, LSN, Catchup(LSN)),
        (SyncWait(LSN), LSN, LATER, Catchup(LATER)),
        (Catchup(LATER), LSN, LATER, None),
        (Catchup(LATER), LATER, LATER, SyncDone(LATER)),
        (SyncDone(LATER), LATER, LATER, Ready()),
        (SyncDone(LATER), LSN, LATER, None),
        (Init(), LATER, LATER, None),
        (Ready(), LATER, LATER, None),
    ],
)
def test_the_phase_that_follows(
    phase: TableReplicationPhase, position: Lsn, staged: Lsn, expected: TableReplicationPhase | None
) -> None:
    """A copied table waits until its LSN is staged, and then applies all that is staged at that moment."""
    assert next_phase(phase, position, staged) == expected


def test_a_retry_is_due_when_its_delay_has_passed() -> None:
    """A table that waits for a user has no retry."""
    assert retry_is_due(PARKED, NOW)
    assert not retry_is_due(PARKED, NOW - timedelta(microseconds=1))
    assert retry_is_due(PARKED, NOW - timedelta(days=400)), "the clock was ahead when the table was parked"
    assert not retry_is_due(replace(PARKED, retry_policy=RetryPolicy.MANUAL_RETRY), NOW)
    assert not retry_is_due(Ready(), NOW)


def test_a_table_that_waits_for_a_user_has_missed_nothing() -> None:
    """It keeps its segments and goes on from them. Only a table that cannot be retried is copied again."""
    assert [needs_resync(replace(PARKED, retry_policy=policy)) for policy in RetryPolicy] == [
        policy is RetryPolicy.NO_RETRY for policy in RetryPolicy
    ]
    assert not continues(replace(PARKED, retry_policy=RetryPolicy.NO_RETRY))
    assert not continues(DataSync())
    assert continues(Ready())


def test_first_copies_share_their_number_with_running_ones() -> None:
    """A copy that runs, and a shadow copy that was begun, take the place of a first copy."""
    waiting = [record(Init(), number=n) for n in (1, 2, 3)]
    running, shadow = record(DataSync(), number=4), record(Ready(), number=5)
    running.begin(Job.COPY)
    shadow.resync.step = Step.COPYING
    assert copies_to_start(waiting, 2, 1) == [[r] for r in waiting[:2]]
    assert copies_to_start([*waiting, running], 2, 1) == [waiting[:1]]
    assert copies_to_start([*waiting, running, shadow], 2, 1) == []
    assert copies_to_start([*waiting, running, shadow], 1, 1) == []


def test_tables_whose_first_copy_waits() -> None:
    """It waits for another session of the stream, for the end of a suspension and for who may begin."""
    plain, later, suspended = record(Init()), record(Init(), number=2), record(Init(), number=3, suspended=True)
    later.copy.after_session = 2
    assert copies_to_start([plain, later, suspended], 4, 1) == [[plain]]
    assert copies_to_start([plain, later, suspended], 4, 2) == [[plain], [later]]
    assert copies_to_start([plain, later], 4, 2, lambda table: table is later) == [[later]]


def test_tables_to_which_changes_are_applied() -> None:
    """Neither a suspended table, nor one that a job has, nor one that is not copied."""
    assert wants_apply(record(Ready()), SOME)
    assert wants_apply(record(Catchup(LSN)), SOME)
    assert not wants_apply(record(Ready()), Pending(0, 0, 0, None))
    assert not wants_apply(record(Ready(), suspended=True), SOME)
    assert [wants_apply(record(phase), SOME) for phase in (Init(), FinishedCopy(LSN), PARKED)] == [False] * 3
    busy = record(Ready())
    busy.begin(Job.MAINTAIN)
    assert not wants_apply(busy, SOME)
