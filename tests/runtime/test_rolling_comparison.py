"""The rules of comparisons by ranges: which table is next, how many rows, and how long to rest."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from tests.runtime import samples

from levada.runtime.config import (
    ContinuousConfig,
    PipelineConfig,
    PublicationConfig,
    SlotConfig,
    StagingConfig,
    TableConfig,
    VerifyConfig,
)
from levada.runtime.verifications.rolling import advanced, begun, next_rows, next_table, rests_until
from levada.status import PipelineState, Progress, ProofProgress, ResyncProgress, ResyncStep, TableProgress

DAY = 24 * 3600.0
WEEK = ContinuousConfig(7 * DAY, 0.01)
MOST = 1_000_000


def config(continuous: ContinuousConfig = WEEK, **tables: TableConfig) -> PipelineConfig:
    """Return a configuration with comparisons by ranges."""
    named = {samples.table(name).table: of for name, of in tables.items()}
    parts = (SlotConfig("s"), PublicationConfig("p"), StagingConfig("/s"), Path("/w"))
    verify = VerifyConfig(continuous=continuous)
    return PipelineConfig("shop", cast(Any, None), *parts, tables=named, verify=verify)


def running(*tables: TableProgress) -> Progress:
    """Return the progress of a running pipeline."""
    return replace(samples.progress(*tables), state=PipelineState.RUNNING, started_at=samples.seconds(-1))


def chosen(found: Progress, settings: PipelineConfig, seconds: float) -> str | None:
    """Return the name of the table of which a range is compared so many seconds after noon."""
    table = next_table(found, settings, samples.seconds(seconds))
    return None if table is None else table.name


def test_each_row_is_compared_once_in_the_period_within_the_load() -> None:
    """Tables of different sizes take turns. The source is busy for 1 % of the time, also over restarts."""
    left = {"small": 0, "large": 0}
    ranges = {"small": 3, "large": 40}
    proofs: dict[str, ProofProgress | None] = {"small": None, "large": None}
    busy, ends, settings = 0.0, {name: list[float]() for name in ranges}, config()
    for second in range(0, int(21 * DAY), 50):
        found = running(*(samples.table(name, proof=proof) for name, proof in proofs.items()))
        name = chosen(found, settings, second)
        if name is None:
            continue
        now, proof = samples.seconds(second), proofs[name]
        if proof is None or proof.began is None:
            proof, left[name] = begun(proof, now), ranges[name]
        left[name] -= 1
        busy += 2.0
        proofs[name] = advanced(proof, 100, 2.0, 0, now, ended=not left[name])
        if not left[name]:
            ends[name].append(second)
        assert busy <= 0.01 * second + 2.1, second
    assert [len(ends[name]) for name in ranges] == [3, 3]
    first_pass = ends["small"][0]
    assert first_pass < 6 * 250, "a small table does not wait for a large one"
    oldest = cast(ProofProgress, proofs["large"]).oldest
    assert oldest is not None
    assert samples.seconds(21 * DAY) - oldest < timedelta(days=8)


def test_a_table_may_be_compared_otherwise_than_all() -> None:
    """It alone is compared, or all others are."""
    no, yes = VerifyConfig(), VerifyConfig(continuous=WEEK)
    found = running(samples.table("a"), samples.table("b"))
    assert chosen(found, config(a=TableConfig(verify=no)), DAY) == "b"
    assert chosen(found, config(ContinuousConfig(), b=TableConfig(verify=yes)), DAY) == "b"
    assert chosen(found, config(a=TableConfig(verify=no), b=TableConfig(verify=no)), DAY) is None


@pytest.mark.parametrize(
    "table",
    [
        samples.table("a", phase="Errored", error=samples.error(retry_policy="ManualRetry")),
        samples.table("a", phase="Errored", error=samples.error(code="rows_differ")),
        samples.table("a", suspended=True),
        samples.table("a", proof=ProofProgress(oldest=samples.NOON, at=samples.NOON)),
        samples.table("a", proof=samples.proof(problem="no key", at=samples.seconds(3000))),
    ],
)
def test_tables_that_are_not_compared(table: TableProgress) -> None:
    """Parked, different and suspended ones, those proved in this period, and those that just failed. Others are."""
    assert chosen(running(table), config(), 3500) is None
    assert chosen(running(table, samples.table("b")), config(), 3500) == "b"


@pytest.mark.parametrize(
    "busy",
    [
        samples.table("b", phase="DataSync", copy=samples.copying()),
        samples.table("b", lag_seconds=1e6),
        samples.table("b", resync=ResyncProgress(ResyncStep.COPYING)),
    ],
)
def test_nothing_is_compared_during_copies_and_backlogs(busy: TableProgress) -> None:
    """Whatever table has them."""
    assert chosen(running(samples.table("a"), busy), config(), 0) is None


def test_a_table_that_always_trails_does_not_starve_the_others() -> None:
    """Those that were not compared for two periods do not wait for it, before their first comparison either."""
    late = samples.table("late", lag_seconds=3600.0)
    for proof in (None, advanced(begun(None, samples.seconds(0)), 1, 2.0, 0, samples.seconds(2), ended=True)):
        found = running(late, samples.table("idle", proof=proof))
        assert chosen(found, config(), 13 * DAY) is None
        assert chosen(found, config(), 15 * DAY) == "idle"
    assert chosen(running(late), config(), 15 * DAY) is None


def test_nothing_is_compared_unless_it_is_configured() -> None:
    """A period of 0 compares nothing, and so does a table that the configuration suspends."""
    assert chosen(running(samples.table("a")), config(ContinuousConfig()), 0) is None
    assert chosen(running(samples.table("a")), config(a=TableConfig(suspended=True)), 0) is None


def test_the_next_range_has_the_rows_of_two_seconds() -> None:
    """By the time of the last one, with bounds, and at most four times as many."""
    last = samples.proof(range_rows=100_000, range_seconds=4.0)
    assert next_rows(None, MOST) == 50_000
    assert next_rows(last, MOST) == 50_000
    assert next_rows(replace(last, range_seconds=0.001), MOST) == 400_000
    assert next_rows(replace(last, range_seconds=4000.0), MOST) == 10_000
    assert next_rows(replace(last, range_seconds=0.001), 40) == 40


def test_a_failed_attempt_rests_too() -> None:
    """A range that gave way to a statement has kept the source busy all the same."""
    found = running(samples.table("a", proof=samples.proof(problem="yielded", range_seconds=3.0)))
    assert rests_until(found, WEEK, samples.NOON) == samples.seconds(297)


def test_a_pass_ends_with_the_age_of_its_begin() -> None:
    """Rows of its first range were proved then, and those of the last one later. Before that it has the former age."""
    begin = begun(samples.proof(rows=7), samples.seconds(10))
    middle = advanced(begin, 50, 1.0, 2, samples.seconds(20), ended=False)
    assert (middle.oldest, middle.began, middle.rows) == (samples.proof().oldest, samples.seconds(10), 50)
    end = advanced(middle, 0, 0.5, 0, samples.seconds(30), ended=True)
    assert (end.oldest, end.began, end.differences, end.range_rows) == (samples.seconds(10), None, 5, 50)
