"""The pure rules by which the registry decides about a table."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from levada.apply.backlog import Pending
from levada.errors import Transient
from levada.postgres.membership import PublicationIdentity, PublicationState
from levada.runtime.config import TableConfig
from levada.runtime.job import Job
from levada.runtime.tables.publication_gaps import published_again
from levada.runtime.tables.record import TableRecord
from levada.runtime.tables.request_rules import RequestStep, request_step
from levada.runtime.tables.requests import CopySettings
from levada.runtime.tables.resync_steps import Step
from levada.runtime.tables.retries import RetryState
from levada.runtime.tables.rules import keeps_others
from levada.runtime.tables.unverified_tables import Verdict, judge_position
from levada.status import RetryPolicy
from levada.stores.interface import TableControls
from levada.stores.phases import (
    Catchup,
    Errored,
    FinishedCopy,
    Init,
    Ready,
    SyncDone,
    SyncWait,
    TableReplicationPhase,
)
from levada.values import Lsn, QualifiedTable, TableId, TableMode

NAME = QualifiedTable("public", "orders")
SETTINGS = CopySettings(NAME, TableMode.UPSERT, "", frozenset(), "", NAME)
OTHERS = CopySettings(NAME, TableMode.CHANGELOG, "", frozenset(), "", NAME)
COPIED = TableControls(made_as=SETTINGS.to_text())
LSN = Lsn(100)


def parked(code: str, policy: RetryPolicy = RetryPolicy.MANUAL_RETRY) -> Errored:
    """Return the phase of a table that is parked with this code."""
    return Errored(code, "reason", "", policy)


def record(phase: TableReplicationPhase = Ready(), job: Job | None = None) -> TableRecord:  # noqa: B008  # immutable
    """Return a table in a phase, with a job if one is given."""
    made = TableRecord(TableId(1), NAME, phase)
    if job is not None:
        made.begin(job)
    return made


@pytest.mark.parametrize(
    ("table", "config", "wanted", "step"),
    [
        (record(), TableConfig(), SETTINGS, RequestStep.NOTHING),
        (record(), TableConfig(resync_nonce=1), SETTINGS, RequestStep.RESYNC),
        (record(), TableConfig(), OTHERS, RequestStep.RESYNC),
        (record(), TableConfig(retry_nonce=1), SETTINGS, RequestStep.RETRY),
        (record(), TableConfig(retry_nonce=1, resync_nonce=1), SETTINGS, RequestStep.RESYNC),
        (record(Init()), TableConfig(resync_nonce=1), OTHERS, RequestStep.APPLY_SETTINGS),
        (record(Init()), TableConfig(), SETTINGS, RequestStep.APPLY_SETTINGS),
        (record(job=Job.APPLY), TableConfig(resync_nonce=1), SETTINGS, RequestStep.WAIT),
        (record(job=Job.APPLY), TableConfig(), SETTINGS, RequestStep.NOTHING),
        (record(job=Job.COPY), TableConfig(), SETTINGS, RequestStep.WAIT),
        (record(job=Job.COPY), TableConfig(retry_nonce=1), SETTINGS, RequestStep.WAIT),
        (record(job=Job.COPY), TableConfig(resync_nonce=1), SETTINGS, RequestStep.CANCEL_COPY),
        (record(job=Job.COPY), TableConfig(), OTHERS, RequestStep.CANCEL_COPY),
    ],
)
def test_the_step_after_the_requests_of_the_manifest(
    table: TableRecord, config: TableConfig, wanted: CopySettings, step: RequestStep
) -> None:
    """A resync takes precedence over a retry. A request waits for the table's job, but ends a copy that it outdates."""
    table.copy.settings = SETTINGS
    assert request_step(table, COPIED, SETTINGS, config, wanted) is step


def test_settings_that_parked_a_table_are_not_tried_again() -> None:
    """A copy with these settings was refused. It is made again for other settings, or when a user requests it."""
    table = record(parked("kept_rows_masked"))
    table.copy.settings = OTHERS
    assert request_step(table, COPIED, SETTINGS, TableConfig(), OTHERS) is RequestStep.NOTHING
    assert request_step(table, COPIED, SETTINGS, TableConfig(retry_nonce=1), OTHERS) is RequestStep.RETRY
    assert request_step(table, COPIED, SETTINGS, TableConfig(resync_nonce=1), OTHERS) is RequestStep.RESYNC
    table.copy.settings = SETTINGS
    assert request_step(table, COPIED, SETTINGS, TableConfig(), OTHERS) is RequestStep.RESYNC


def test_requests_wait_until_an_abandoned_shadow_copy_is_removed() -> None:
    """A new shadow copy could not begin before that."""
    table = record()
    table.resync.step = Step.ABANDONED
    assert request_step(table, COPIED, SETTINGS, TableConfig(resync_nonce=1), SETTINGS) is RequestStep.WAIT
    assert request_step(table, COPIED, SETTINGS, TableConfig(), SETTINGS) is RequestStep.NOTHING


@pytest.mark.parametrize("phase", [FinishedCopy(LSN), SyncWait(LSN), Catchup(LSN)], ids=lambda p: p.name)
def test_a_copy_that_was_not_used_is_repeated_after_a_restart_of_the_source(phase: TableReplicationPhase) -> None:
    """Nothing was applied to it, so another copy repairs it without a user."""
    assert judge_position(phase, Lsn(101), LSN) is Verdict.COPY_AGAIN
    assert judge_position(phase, LSN, LSN) is Verdict.VERIFIED


@pytest.mark.parametrize("phase", [SyncDone(LSN), Ready(), parked("rows_locked")], ids=lambda p: p.name)
def test_a_table_beyond_the_verified_history_is_parked(phase: TableReplicationPhase) -> None:
    """It may have changes that the source does not have."""
    assert judge_position(phase, Lsn(101), LSN) is Verdict.PARK
    assert judge_position(phase, LSN, LSN) is Verdict.VERIFIED


def published(*operations: str) -> PublicationState:
    """Return a publication of these operations."""
    return PublicationState("levada_shop", PublicationIdentity(1, "1", operations, via_root=False), {}, {})


def test_a_table_is_copied_when_all_its_changes_are_published_again() -> None:
    """A table that is parked for another reason, or that missed changes, waits for its own resolution."""
    everything = published("insert", "update", "delete", "truncate")
    assert published_again(parked("table_not_published"), everything)
    assert not published_again(parked("table_not_published"), published("insert"))
    assert not published_again(parked("table_not_published"), PublicationState("levada_shop", None, {}, {}))
    assert not published_again(parked("table_not_published", RetryPolicy.NO_RETRY), everything)
    assert not published_again(parked("source_unreachable"), everything)
    assert not published_again(Ready(), everything)


def test_failed_attempts_are_counted_in_a_row() -> None:
    """The first attempt has the number 1, and a success begins again."""
    state, error = RetryState(), Transient("commit_conflict", "another writer")
    assert [state.failed(error, 0.0, 1.0), state.failed(error, 0.0, 2.0)] == [1, 2]
    state.begin_again()
    assert state.failed(error, 0.0, 3.0) == 1


def test_attempts_count_as_one_tables_own_if_another_table_is_written_meanwhile() -> None:
    """The first failure shows nothing, and neither does a success before it."""
    state, error = RetryState(), Transient("destination_unavailable", "no answer")
    state.failed(error, 5.0, 6.0)
    state.failed(error, 5.0, 7.0)
    assert (state.attempts, state.alone) == (2, 0)
    state.failed(error, 7.5, 8.0)
    assert (state.attempts, state.alone) == (3, 1)
    state.begin_again()
    assert (state.attempts, state.alone) == (0, 0)


def test_the_last_commit_is_the_newest_of_copies_and_batches() -> None:
    """Each stage records its own commits."""
    table, early, late = record(), datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)
    assert table.last_commit_at is None
    table.copy.committed_at = early
    assert table.last_commit_at == early
    table.apply.committed_at = late
    assert table.last_commit_at == late


def test_the_tables_for_which_others_wait() -> None:
    """The others wait for a job, for a copy that has just ended, and for changes that are retried automatically."""
    some, none = Pending(1, 1, 1, 1), Pending(0, 0, 0, None)
    retried, manual = (parked("code", p) for p in (RetryPolicy.TIMED_RETRY, RetryPolicy.MANUAL_RETRY))
    assert keeps_others(record(job=Job.COPY), none)
    assert keeps_others(record(FinishedCopy(LSN)), none)
    assert keeps_others(record(retried), some)
    assert not keeps_others(record(retried), none), "its copy failed, or it has no part in what is staged"
    assert not keeps_others(record(manual), some)
    assert not keeps_others(record(Init()), none)
    assert not keeps_others(record(), some)
    suspended = record(retried)
    suspended.suspended = True
    assert not keeps_others(suspended, some)


def test_a_job_has_a_table_until_it_ends() -> None:
    """The time is that at which a thread has begun it."""
    table, at = record(job=Job.APPLY), datetime(2026, 1, 1, tzinfo=UTC)
    assert table.busy is Job.APPLY
    assert table.job is not None
    assert table.job.since is None
    table.started(at)
    assert table.job.since == at
    table.end()
    assert table.busy is None
    table.started(at)
    assert table.job is None
