"""Copies that are made again by themselves: of tables with certain errors, ever more seldom, within limits."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.rigs.pipeline import HELD

from levada.runtime.config import PipelineConfig, RetryLimits, SlotConfig, TableConfig
from levada.runtime.config_ref import ConfigRef
from levada.runtime.tables.copied_again import COPIED_AGAIN, NOT_COPIED_AGAIN, copies_again
from levada.runtime.tables.copy_plan import CopyPlan, Recreate, ReplaceInPlace
from levada.runtime.tables.own_copies import MOST_COPIES, OwnCopies
from levada.runtime.tables.record import TableRecord
from levada.runtime.tables.requests import CopySettings
from levada.runtime.tables.resync_steps import Step
from levada.runtime.tables.rules import copies_to_start
from levada.status import CopyProgress, RetryPolicy
from levada.stores import MemoryStore
from levada.stores.phases import Errored, Init, Ready
from levada.values import OnUnstreamable, QualifiedTable, TableId, TableMode

NAME = QualifiedTable("public", "orders")
SETTINGS = CopySettings(NAME, TableMode.UPSERT, "", frozenset(), "", NAME)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
ERRORS = Path(__file__).parents[2] / "docs" / "errors.md"
CONFIG = PipelineConfig(
    name="shop",
    source=cast("Any", None),
    slot=SlotConfig("levada_shop"),
    publication=cast("Any", None),
    staging=cast("Any", None),
    work_dir=Path(),
    retries=RetryLimits(max_attempts=3, delay_s=10.0),
)


class Copies:
    """The rules over one table that an engine would park and copy."""

    def __init__(self, config: PipelineConfig = CONFIG, size: int | None = 100) -> None:
        self.store = MemoryStore("shop")
        self.store.next_epoch()
        self.plan: CopyPlan = ReplaceInPlace(SETTINGS, SETTINGS)
        self.ref = SimpleNamespace(current=config)
        self.own = OwnCopies(cast("ConfigRef", self.ref), self.store, lambda record: self.plan, lambda table: size)
        self.record = TableRecord(TableId(1), NAME, Ready())

    def park(self, code: str = "table_rewritten") -> None:
        self.record.phase = Errored(code, "rewritten", "levada resync", RetryPolicy.NO_RETRY)

    def copy(self, now: datetime, *, ready: bool = True) -> bool:
        """Copy the table if that is due, so that it becomes Ready or is parked again."""
        if not self.own.is_due(self.record, now):
            return False
        self.own.begins(self.record, now)
        self.record.copy.finished = CopyProgress(rows=1)
        if ready:
            self.record.phase = Ready()
            self.own.is_due(self.record, now)
        return True

    @property
    def solution(self) -> str:
        error = self.own.error(self.record)
        assert error is not None
        return error.solution


def rows() -> Iterator[tuple[str, str]]:
    """Yield each code of docs/errors.md with its row."""
    for line in ERRORS.read_text().splitlines():
        if match := re.match(r"\| `(\w+)` \|", line):
            yield match[1], line


def test_each_error_of_a_table_says_whether_it_is_copied_again() -> None:
    """A code whose remedy is a command for one table is resolved by a copy, or is named with why it is not."""
    tables = {code for code, row in rows() if "MANIFEST TABLE" in row}
    decided = COPIED_AGAIN | NOT_COPIED_AGAIN.keys()
    assert tables <= decided, tables - decided
    assert not COPIED_AGAIN & NOT_COPIED_AGAIN.keys()
    assert decided <= {code for code, _ in rows()}


def test_the_page_of_errors_says_which_are_copied_again() -> None:
    """A reader finds there what happens without her."""
    assert {code for code, row in rows() if "Copied again." in row} == COPIED_AGAIN


def test_the_manifest_decides() -> None:
    """Hold leaves tables to a person, a retried error is retried, and a source that may be a wrong one has onLost."""
    no, manual = RetryPolicy.NO_RETRY, RetryPolicy.MANUAL_RETRY
    assert copies_again(CONFIG, NAME, "key_changed", manual)
    assert copies_again(CONFIG, NAME, "reserved_column_name", no)
    assert not copies_again(CONFIG, NAME, "foreign_write", manual)
    assert not copies_again(CONFIG, NAME, "key_changed", RetryPolicy.TIMED_RETRY)
    assert not copies_again(replace(CONFIG, default_table=HELD), NAME, "key_changed", manual)
    assert not copies_again(replace(CONFIG, tables={NAME: HELD}), NAME, "key_changed", manual)
    changelog = TableConfig(mode=TableMode.CHANGELOG)
    assert not copies_again(replace(CONFIG, default_table=changelog), NAME, "table_rewritten", no)
    assert not copies_again(CONFIG, NAME, "source_changed", no)
    assert copies_again(replace(CONFIG, slot=SlotConfig("s", resync_when_lost=True)), NAME, "source_changed", no)


@pytest.mark.parametrize("ahead", [timedelta(minutes=10), timedelta(days=400)])
def test_a_copy_of_a_clock_that_was_ahead_delays_none(ahead: timedelta) -> None:
    """The next copy is due at once when the clock is right again."""
    made = Copies()
    made.park()
    assert made.copy(NOW + ahead)
    made.park()
    assert made.copy(NOW)


def test_copies_back_off() -> None:
    """The first copy is due at once, each further one only after the delay, which is in the error."""
    made = Copies()
    made.park()
    assert made.copy(NOW)
    made.park()
    assert not made.copy(NOW + timedelta(seconds=9))
    error = made.own.error(made.record)
    assert error is not None
    assert (error.retry_policy, error.next_retry) == ("TimedRetry", NOW + timedelta(seconds=10))
    assert made.copy(NOW + timedelta(seconds=10))
    made.park()
    assert not made.copy(NOW + timedelta(seconds=29))
    assert made.copy(NOW + timedelta(hours=2)), "the count begins again"


def test_an_abandoned_shadow_copy_is_removed_first() -> None:
    """Another copy could not begin before that."""
    made = Copies()
    made.park()
    made.record.resync.step = Step.ABANDONED
    assert not made.copy(NOW)


@pytest.mark.parametrize(("ready", "copies"), [(False, 3), (True, MOST_COPIES)])
def test_a_table_that_parks_again_and_again_is_held(ready: bool, copies: int) -> None:
    """Whether its copies end in the same error or succeed. Only a request begins again, also after a restart."""
    made, now, count = Copies(), NOW, 0
    made.park()
    while made.copy(now, ready=ready):
        count, now = count + 1, now + timedelta(minutes=20)
        made.park()
    assert count >= copies
    assert "not copied again by itself" in made.solution
    made.record.own = type(made.record.own)()
    made.own.add(made.record)
    assert not made.copy(now)
    made.own.requested(made.record)
    assert made.copy(now)


def test_a_refused_copy_costs_nothing() -> None:
    """Until its cause is gone it is tried again, ever more seldom, for however long. Then the copies are counted."""
    made, now = Copies(), NOW
    for _ in range(2000):
        made.park("partition_identity")
        assert made.copy(now, ready=False)
        made.record.copy.finished = None
        made.own.is_due(made.record, now)
        error = made.own.error(made.record)
        assert error is not None
        assert error.next_retry is not None
        assert "not copied again by itself" not in error.solution
        now += timedelta(minutes=11)
    assert made.copy(now)
    made.park("partition_identity")
    assert made.copy(now + timedelta(minutes=11)), "one copy in a row"


def test_a_large_table_waits_for_an_approval() -> None:
    """Its size at the source counts, and an unknown size counts as a larger one."""
    limited = replace(CONFIG, largest_own_copy=100)
    for size, copied in ((100, True), (101, False), (None, False)):
        made = Copies(limited, size)
        made.park()
        assert made.copy(NOW) is copied
        assert copied or "spec.approval is Manual" in made.solution


def test_readers_keep_the_table() -> None:
    """A destination that cannot replace it copies it only if its own settings say so."""
    made = Copies()
    made.plan = Recreate(SETTINGS, SETTINGS)
    made.park()
    assert not made.copy(NOW)
    assert "could not be read during the copy" in made.solution
    made.ref.current = replace(CONFIG, tables={NAME: TableConfig(on_unstreamable=OnUnstreamable.RESYNC)})
    assert made.copy(NOW)


def test_the_reason_stays_while_the_table_is_copied() -> None:
    """It ends when the table is Ready."""
    made = Copies()
    made.park()
    made.own.is_due(made.record, NOW)
    made.own.begins(made.record, NOW)
    made.record.phase = Init()
    resolved = made.own.resolved(made.record)
    assert resolved is not None
    assert (resolved.code, resolved.reason) == ("table_rewritten", "rewritten")
    made.record.phase = Ready()
    made.own.is_due(made.record, NOW)
    assert made.own.resolved(made.record) is None


def test_the_smallest_table_is_copied_first() -> None:
    """After the tables that have no copy yet."""
    records = []
    for number, size in enumerate((300, 100, 200, None), 1):
        record = TableRecord(TableId(number), QualifiedTable("public", f"t{number}"), Init())
        if size is not None:
            record.own = replace(record.own, code="table_rewritten", bytes=size)
        records.append(record)
    assert [[r.id for r in group] for group in copies_to_start(records, 3, 0)] == [[4], [2], [3]]
