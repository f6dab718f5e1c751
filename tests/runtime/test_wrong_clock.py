"""Times that a clock wrote which was ahead, and is right again: nothing waits until they have come.

Each case has such a time, and what should follow at once from it, or from the next interval on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from tests.runtime import samples
from tests.runtime.samples import NOON

from levada.runtime.config import (
    ContinuousConfig,
    PipelineConfig,
    PublicationConfig,
    RetryLimits,
    SlotConfig,
    StagingConfig,
    VerifyConfig,
)
from levada.runtime.report.http import not_ready
from levada.runtime.report.liveness import Liveness
from levada.runtime.tables.cut_rules import outdated
from levada.runtime.tables.guard_rules import recent
from levada.runtime.tables.rules import retry_is_due
from levada.runtime.verifications.rolling import next_table
from levada.runtime.verifications.schedule import lacks_end, next_verification
from levada.status import CutPhase, PipelineState, Progress, RetryPolicy, TableProgress
from levada.stores import Cut
from levada.stores.phases import Errored
from levada.values import Lsn, TableId, age_of

HOUR = timedelta(hours=1)
AHEAD = pytest.mark.parametrize("at", [NOON + 2 * HOUR, NOON + timedelta(days=1), NOON + timedelta(days=400)], ids=str)


def config(**verify: Any) -> PipelineConfig:
    """Return a configuration that verifies tables."""
    parts = (SlotConfig("s"), PublicationConfig("p"), StagingConfig("/s"), Path("/w"))
    return PipelineConfig("shop", cast(Any, None), *parts, verify=VerifyConfig(**verify))


def running(*tables: TableProgress, **changes: Any) -> Progress:
    """Return the progress of a running pipeline."""
    return replace(samples.progress(*tables), **{"state": PipelineState.RUNNING, "started_at": NOON - HOUR} | changes)


@AHEAD
def test_a_parked_table_is_retried(at: datetime) -> None:
    """Its retry is due, unless a delay can be so long."""
    parked = Errored("destination_clock", "", "", RetryPolicy.TIMED_RETRY, 1, at + timedelta(seconds=600))
    assert retry_is_due(parked, NOON, RetryLimits())
    assert not retry_is_due(parked, NOON, RetryLimits(max_delay_s=(at - NOON).total_seconds() + 600))


@AHEAD
def test_a_table_is_verified_by_schedule(at: datetime) -> None:
    """Its last verification counts for nothing. One that failed since is repeated an hour later."""
    daily = config(every_s=24 * 3600)
    ahead = samples.table(verified=samples.verified(at=at), verify_tried=at)
    assert next_verification(running(ahead), daily, NOON) is not None
    # A table has its turn once in a day, divided by the number of tables.
    others = [samples.table(f"t{n}", verified=samples.verified(at=NOON)) for n in range(48)]
    failed = replace(ahead, verify_tried=NOON)
    assert next_verification(running(failed, *others), daily, NOON + 0.9 * HOUR) is None
    assert next_verification(running(failed, *others), daily, NOON + HOUR) is not None
    # The thread waits for a newer progress only until its own time is over.
    assert not lacks_end(running(), at, NOON)
    assert lacks_end(running(), NOON, NOON)


def proofs(at: datetime) -> Iterator[tuple[str, Progress]]:
    """Yield progress of which one time of a comparison by ranges is of the future."""
    done = samples.proof(began=None, oldest=NOON - timedelta(days=30), at=NOON - HOUR)
    yield "the last range", running(samples.table(proof=replace(done, at=at)))
    yield (
        "the last range of another table",
        running(samples.table("a", proof=replace(done, at=at, oldest=at)), samples.table("b", proof=done)),
    )
    yield "the pass", running(samples.table(proof=replace(done, oldest=at)))
    yield "the pass under way", running(samples.table(proof=replace(done, began=at)))
    yield "the start", running(samples.table(proof=None), started_at=at)


@AHEAD
def test_ranges_are_compared(at: datetime) -> None:
    """Neither the rest after a range nor the period of a pass is longer than usual."""
    weekly = config(continuous=ContinuousConfig(7 * 24 * 3600, 0.01))
    for what, found in proofs(at):
        assert next_table(found, weekly, NOON) is not None, what


@AHEAD
def test_a_cut_keeps_no_place_of_newer_ones(at: datetime) -> None:
    """It is as old as its last transaction by the source's clock, or the oldest."""
    ended = (CutPhase.COMPLETE, (TableId(1),), (), True)
    right = [Cut(f"right{n}", Lsn(n), NOON - n * HOUR, None, *ended) for n in (3, 2, 1)]
    for committed, dropped in ((None, ["right3", "wrong"]), (NOON - 2.5 * HOUR, ["right3", "wrong"])):
        wrong = Cut("wrong", Lsn(9), at, committed, *ended)
        assert sorted(outdated([wrong, *right], 2, NOON)) == dropped
    assert "wrong" not in outdated([Cut("wrong", Lsn(9), at, NOON, *ended), *right], 2, NOON)


@AHEAD
def test_figures_of_the_future_are_old(at: datetime) -> None:
    """Neither the guard nor a probe takes them for those of now."""
    assert recent(samples.slot(sampled_at=at), NOON) is None
    assert recent(samples.slot(sampled_at=NOON), NOON + timedelta(seconds=1)) is not None
    assert "last reported" in not_ready(running(at=at), NOON)
    assert "last reported" in Liveness(600).observe(running(at=at), NOON)


@AHEAD
def test_an_engine_is_found_stuck_that_last_moved_in_the_future(at: datetime) -> None:
    """The deadline counts from the first snapshot by the right clock."""
    liveness, waiting = Liveness(600), samples.slot(lag_bytes=9_000, sampled_at=NOON + HOUR)
    assert not liveness.observe(running(at=at, slot=waiting), at)
    for seconds, stuck in ((1, False), (300, False), (602, True)):
        now = samples.seconds(seconds)
        slot = replace(waiting, sampled_at=now)
        assert bool(liveness.observe(running(at=now, slot=slot), now)) is stuck, seconds


@pytest.mark.parametrize("seconds", [-5, 0, 3, 86_400])
def test_an_age(seconds: int) -> None:
    """A clock that is set back by a moment makes nothing old."""
    assert age_of(NOON - timedelta(seconds=seconds), NOON) == timedelta(seconds=max(seconds, 0))
    assert age_of(NOON + timedelta(seconds=6), NOON) == timedelta.max
