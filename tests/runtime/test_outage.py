"""The rules by which parked tables try a destination that is away."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from levada.errors import LevadaError, Transient
from levada.runtime.config import RetryLimits
from levada.runtime.tables.outage import Outage
from levada.runtime.tables.record import TableRecord
from levada.runtime.tables.retries import park
from levada.stores.phases import Ready
from levada.values import QualifiedTable, TableId

START = datetime(2026, 1, 1, tzinfo=UTC)
LIMITS = RetryLimits(max_attempts=5, delay_s=10, max_delay_s=600)
AWAY = Transient("destination_unreachable", "no answer")
CONFLICT = Transient("commit_conflict", "another writer")


class Tables:
    """Tables of one destination, with seconds since the start as the clock."""

    def __init__(self, count: int, *, together: bool = False) -> None:
        self.outage = Outage(together=together)
        self.records = [TableRecord(TableId(n), QualifiedTable("public", f"t{n}"), Ready()) for n in range(count)]
        self.now = 0.0

    def fail(self, number: int, error: LevadaError = AWAY, *, reading: bool = False) -> None:
        record = self.records[number]
        self.outage.failed(error, LIMITS, self.now, reading=reading)
        attempt = record.retries.failed(error, self.outage.written_at, self.now, reading=reading)
        record.phase = park(error, attempt, LIMITS, self.clock, alone=record.retries.alone)

    def write(self, number: int) -> None:
        self.outage.written(self.now)
        self.records[number].retries.begin_again()

    def retried(self) -> list[int]:
        """Return the numbers of the tables that are retried now. They are Ready afterwards."""
        self.outage.choose(self.records, LIMITS, self.now)
        due = [n for n, r in enumerate(self.records) if self.outage.retry_is_due(r, self.clock, LIMITS)]
        for n in due:
            self.outage.retried(self.records[n].id)
            self.records[n].phase = Ready()
        return due

    @property
    def clock(self) -> datetime:
        return START + timedelta(seconds=self.now)


def test_one_table_at_a_time_tries_a_destination_that_is_away() -> None:
    """In an hour each table in turn is retried, at most one in ten seconds. With the first success all are due."""
    tables = Tables(100)
    for n in range(100):
        tables.fail(n)
    tries: list[int] = []
    for second in range(1, 3600):
        tables.now = second
        for n in tables.retried():
            tries.append(n)
            tables.fail(n)
    assert 60 <= len(tries) <= 70
    assert len(set(tries)) == len(tries)
    assert tables.outage.lasts
    tables.write(0)
    assert not tables.outage.lasts
    tables.now += 0.1
    assert tables.retried() == list(range(100))


def test_a_table_that_fails_alone_has_its_own_delay() -> None:
    """The writes of other tables bring one retry forward. After that its failures are its own."""
    tables = Tables(2)
    tries = []
    tables.fail(0)
    for second in range(1, 100):
        tables.now = second
        tables.write(1)
        for n in tables.retried():
            tries.append(second)
            tables.fail(n)
    assert tries == [1, 21, 61]


@pytest.mark.parametrize("together", [False, True])
def test_one_table_is_tried_again_and_again(together: bool) -> None:
    """Without other tables, and where all tables are written simultaneously, nothing but the delay holds a table."""
    tables = Tables(1, together=together)
    tables.fail(0)
    tries = []
    for second in range(1, 200):
        tables.now = second
        for n in tables.retried():
            tries.append(second)
            tables.fail(n)
    assert tries == ([10, 30, 70, 150] if together else [10, 30, 70, 130, 190])


def test_tables_that_are_written_at_once_are_retried_at_once() -> None:
    """None of them can be written before the others are retried too."""
    tables = Tables(3, together=True)
    for n in range(3):
        tables.fail(n)
    tables.now = 10
    assert tables.retried() == [0, 1, 2]


def test_other_errors_keep_their_own_delays() -> None:
    """An error of one table neither begins an outage nor waits for one."""
    tables = Tables(3)
    tables.fail(0, CONFLICT)
    assert not tables.outage.lasts
    tables.fail(1)
    tables.fail(2)
    tables.now = 10
    assert tables.retried() == [0, 1]


def test_a_read_releases_the_tables_that_could_not_be_read() -> None:
    """Tables without changes continue with it. Those that could not be written wait for a write."""
    tables = Tables(4)
    for n in (0, 1):
        tables.fail(n, reading=True)
    for n in (2, 3):
        tables.fail(n)
    tables.now = 1
    tables.outage.answered(tables.now, writes_follow=True)
    assert tables.retried() == [0, 1]
    assert tables.outage.lasts
    # Reads that succeed while writes fail release no table again and again.
    tables.now = 10
    assert tables.retried() == [2]
    tables.outage.answered(tables.now, writes_follow=True)
    tables.fail(2)
    assert tables.retried() == []


def test_tables_whose_writes_arrived_continue_one_after_the_other() -> None:
    """Only the answer was lost, so they have nothing to write. Without this, each would wait for up to a minute."""
    tables = Tables(3)
    for n in range(3):
        tables.fail(n)
    tables.now = 10
    assert tables.retried() == [0]
    tables.outage.answered(tables.now, writes_follow=False)
    assert tables.retried() == [1]
    tables.outage.answered(tables.now, writes_follow=False)
    assert tables.retried() == [2]


def test_a_table_that_is_busy_or_gone_is_not_waited_for() -> None:
    """Another one is chosen after the next delay."""
    tables = Tables(3)
    for n in range(3):
        tables.fail(n)
    tables.now = 10
    tables.outage.choose(tables.records, LIMITS, tables.now)
    gone = tables.records.pop(0)
    assert tables.retried() == []
    tables.now = 40
    assert len(tables.retried()) == 1
    assert gone.phase.name == "Errored"
