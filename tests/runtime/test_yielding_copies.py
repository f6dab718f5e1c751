"""A copy that gives way to a statement is no failed attempt: it is made again for as long as statements come."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from tests.runtime.one_table import TABLE, config_ref, start

from levada.errors import NeedsOperator, Transient, Yielded
from levada.runtime.inbox import Inbox
from levada.runtime.stages.resync import ResyncStage
from levada.runtime.stages.stage import StageParts
from levada.runtime.tables.resync import ResyncEnded, ResyncJob
from levada.runtime.tables.resync_steps import Step
from levada.status import RetryPolicy
from levada.stores import MemoryStore
from levada.stores.phases import DataSync, Errored, Init, Ready

YIELDED = Yielded("copy_yielded", "the copy of public.orders gave way to PID 7, which waits for a lock")
FAILED = Transient("commit_conflict", "another writer")
ROUNDS = 20


def new_store() -> MemoryStore:
    """Return the store of a pipeline that an engine has taken over."""
    store = MemoryStore("shop")
    store.next_epoch()
    return store


def test_a_first_copy_that_gives_way_is_retried_without_end(tmp_path: Path) -> None:
    """Each time the status has the reason and the time of the next try. Failures before and after count as before."""
    store = new_store()
    store.update_table_replication_states({TABLE: Init()})
    registry, record = start(tmp_path, store)
    registry.phases.enter(record, DataSync())
    registry.phases.park(record, FAILED)
    for _ in range(ROUNDS):
        registry.phases.enter(record, Init())
        registry.phases.enter(record, DataSync())
        registry.phases.park(record, YIELDED)
        assert isinstance(record.phase, Errored)
        assert record.phase.retry_policy is RetryPolicy.TIMED_RETRY
        assert record.error is not None
        assert (record.error.code, record.error.reason) == (YIELDED.code, YIELDED.message)
        assert record.error.next_retry is not None
    assert record.retries.attempts == 1
    registry.phases.enter(record, Init())
    registry.phases.enter(record, DataSync())
    registry.phases.park(record, FAILED)
    assert record.retries.attempts == 2


def test_the_log_calls_parked_what_needs_a_person(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A table that is retried automatically is not called parked."""
    store = new_store()
    store.update_table_replication_states({TABLE: Init()})
    registry, record = start(tmp_path, store)
    for error, state in ((YIELDED, "will be retried"), (NeedsOperator("a", "it failed", hint="b"), "is parked")):
        caplog.clear()
        if record.phase != Init():
            registry.phases.enter(record, Init())
        registry.phases.enter(record, DataSync())
        registry.phases.park(record, error)
        [line] = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
        assert line == f"table public.orders {state}: {error.message} [{error.code}]"


def test_a_shadow_copy_that_gives_way_is_retried_without_end(tmp_path: Path) -> None:
    """It is never given up for that, and the status has the reason."""
    store = new_store()
    store.update_table_replication_states({TABLE: Ready()})
    registry, record = start(tmp_path, store)
    nothing = cast(Any, None)
    stage = ResyncStage(StageParts(config_ref(tmp_path), registry, store, nothing, Inbox()), nothing, nothing, nothing)
    record.resync.request()
    for _ in range(ROUNDS):
        record.resync.enter(Step.COPYING)
        record.resync.running = True
        stage._job_ended(ResyncEnded(TABLE, ResyncJob.COPY, YIELDED))
        assert not record.resync.abandoned
        assert record.resync.error is not None
        assert (record.resync.error.code, record.resync.error.reason) == (YIELDED.code, YIELDED.message)
        assert record.resync.error.next_retry is not None
    assert record.resync.retries.attempts == 0
    assert record.resync.given_up is None
    stage.close()
