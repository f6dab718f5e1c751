"""The rule for the next verification that the manifest asks for."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import pytest
from tests.runtime import samples

from levada.runtime.config import (
    PipelineConfig,
    PublicationConfig,
    SlotConfig,
    StagingConfig,
    TableConfig,
    VerifyConfig,
)
from levada.runtime.verifications.schedule import next_verification
from levada.status import PipelineState, Progress, ResyncProgress, ResyncStep, TableProgress

HOUR = 3600.0
DAY = 24 * HOUR


def config(every_s: float = DAY, **nonces: int) -> PipelineConfig:
    """Return a configuration with a period and nonces of tables."""
    tables = {samples.table(name).table: TableConfig(verify_nonce=nonce) for name, nonce in nonces.items()}
    return PipelineConfig(
        "shop",
        cast(Any, None),
        SlotConfig("s"),
        PublicationConfig("p"),
        StagingConfig("/s"),
        Path("/w"),
        tables=tables,
        verify=VerifyConfig(every_s),
    )


def table(name: str, verified_at: float | None = None, **changes: Any) -> TableProgress:
    """Return a table that was compared at that many seconds after noon."""
    verified = None if verified_at is None else replace(samples.verified(), at=samples.seconds(verified_at))
    return samples.table(name, verified=verified, **changes)


def progress(*tables: TableProgress, started_at: float = -1.0) -> Progress:
    """Return the progress of a running pipeline."""
    return replace(samples.progress(*tables), state=PipelineState.RUNNING, started_at=samples.seconds(started_at))


def at(seconds: float) -> datetime:
    """Return the time so many seconds after noon."""
    return samples.seconds(seconds)


def chosen(found: Progress, settings: PipelineConfig, seconds: float) -> str | None:
    """Return the name of the table that is verified then."""
    due = next_verification(found, settings, at(seconds))
    return None if due is None else due.table.name


def test_nothing_is_verified_without_a_request() -> None:
    """A period of 0 and a nonce of 0 ask for nothing."""
    assert chosen(progress(table("a")), config(0.0), DAY * 9) is None


def test_each_table_is_verified_once_in_a_period_spread_over_it() -> None:
    """With four tables and a day, one verification begins every six hours, and each table has its turn every day."""
    tables, begun, settings = [table(name) for name in "abcd"], [], config()
    for minute in range(0, 3 * 24 * 60, 10):
        now = minute * 60.0
        name = chosen(progress(*tables), settings, now)
        if name is not None:
            begun.append((name, now / HOUR))
            at_ = "abcd".index(name)
            tables[at_] = table(name, now + 60, verify_tried=at(now))
    assert [name for name, _ in begun[:8]] == list("abcdabcd")
    assert [hour for _, hour in begun[:4]] == [0, 6, 12, 18]
    assert len(begun) in (11, 12)


def test_a_table_has_a_period_of_its_own() -> None:
    """In a day, one of 8 hours is compared three times and one of a day once. One of 0 is never compared."""
    settings = replace(
        config(),
        tables={
            samples.table("a").table: TableConfig(verify=VerifyConfig(8 * HOUR)),
            samples.table("c").table: TableConfig(verify=VerifyConfig(0.0)),
        },
    )
    tables, begun = [table(name) for name in "abc"], []
    for minute in range(0, 4 * 24 * 60, 10):
        now = minute * 60.0
        name = chosen(progress(*tables), settings, now)
        if name is not None:
            begun.append(name)
            tables["abc".index(name)] = table(name, now + 60, verify_tried=at(now))
    assert begun.count("a") in (11, 12)
    assert begun.count("b") in (3, 4)
    assert "c" not in begun
    alone = replace(settings, verify=VerifyConfig())
    assert chosen(progress(*(table(name) for name in "bca")), alone, DAY * 9) == "a"


def test_a_restart_neither_begins_the_period_again_nor_verifies_all() -> None:
    """The times in the store decide, not the start of the process."""
    tables = [table("a", 60, verify_tried=at(0)), table("b", 6 * HOUR, verify_tried=at(6 * HOUR - 60))]
    after = progress(*tables, started_at=7 * HOUR)
    assert chosen(after, config(), 7 * HOUR + 1) is None
    assert chosen(after, config(), DAY + 61) == "a"
    never = [table(name) for name in "abc"]
    never[0] = table("a", 60, verify_tried=at(0))
    assert chosen(progress(*never, started_at=100), config(), 101) is None


def test_a_crash_during_a_verification_does_not_repeat_it_at_once() -> None:
    """The attempt was stored before it began. It is repeated after an hour, and other tables come before."""
    tables = [table("a", verify_tried=at(0)), *(table(n, 50, verify_tried=at(-60)) for n in "bcdefghi")]
    after = progress(*tables, started_at=10)
    assert chosen(after, config(), 20) is None
    assert chosen(after, config(), 3 * HOUR) == "a"


def test_a_failed_verification_does_not_keep_others_from_theirs() -> None:
    """The table that was attempted longest ago comes first, whether that succeeded or not."""
    tables = [table("a", verify_tried=at(0)), table("b", -2 * DAY, verify_tried=at(-2 * DAY - 60))]
    assert chosen(progress(*tables), config(HOUR), HOUR) == "b"


@pytest.mark.parametrize(
    "changes",
    [
        {"phase": "DataSync", "lag_seconds": None},
        {"suspended": True},
        {"error": samples.error(), "phase": "Errored"},
        {"resync": ResyncProgress(ResyncStep.COPYING)},
    ],
)
def test_only_ready_tables_are_verified(changes: dict[str, Any]) -> None:
    """Others are left out, also if requested, and keep no other table from its turn."""
    found = progress(table("a", **changes), table("b"))
    assert chosen(found, config(a=1), 0) == "b"
    assert chosen(found, config(0.0, a=1), 0) is None


def test_the_schedule_waits_for_tables_that_trail() -> None:
    """A table behind its target delays the schedule, but no request. One that is parked or suspended does not."""
    late = progress(table("a"), table("b", lag_seconds=25.0))
    assert chosen(late, config(), 0) is None
    assert chosen(late, config(b=1), 0) == "b"
    parked = table("b", lag_seconds=9e9, error=samples.error(), phase="Errored")
    assert chosen(progress(table("a"), parked, table("c", lag_seconds=9e9, suspended=True)), config(), 0) == "a"
    given_up = table("a", resync=ResyncProgress(ResyncStep.GIVEN_UP))
    assert chosen(progress(given_up), config(), 0) == "a"


def test_a_nonce_requests_one_verification() -> None:
    """A handled value requests nothing. A new one does immediately, whenever the last verification was."""
    handled = table("a", 10, verify_tried=at(5), verify_nonce=3)
    assert chosen(progress(handled), config(0.0, a=3), 20) is None
    assert chosen(progress(handled), config(0.0, a=4), 20) == "a"
    assert chosen(progress(replace(handled, verify_nonce=4)), config(0.0, a=3), 20) == "a"


def test_a_request_that_ended_the_process_is_delayed() -> None:
    """Otherwise a verification that ends the process would do so at each start."""
    again = progress(table("a", verify_tried=at(0)), started_at=30)
    assert chosen(again, config(0.0, a=1), 40) is None
    assert chosen(again, config(0.0, a=1), 700) == "a"


def test_a_clock_that_went_back_stops_nothing() -> None:
    """Times in the future count as none."""
    future = table("a", 10 * DAY, verify_tried=at(10 * DAY))
    assert chosen(progress(future, table("b", 0, verify_tried=at(0))), config(), 0.5 * DAY) == "a"


@pytest.mark.parametrize("state", [PipelineState.STARTING, PipelineState.STOPPING, PipelineState.FAILED])
def test_nothing_is_verified_unless_the_pipeline_runs(state: PipelineState) -> None:
    """Neither before the start nor during the end."""
    assert chosen(replace(progress(table("a")), state=state), config(a=1), 0) is None


def test_a_table_that_the_configuration_suspends_is_not_verified() -> None:
    """Also while the progress does not show that yet. Its request would fail, and be forgotten."""
    known = table("a")
    suspended = replace(config(0.0), tables={known.table: TableConfig(verify_nonce=7, suspended=True)})
    assert chosen(progress(known), suspended, 0) is None
    assert chosen(progress(known), config(0.0, a=7), 0) == "a"
