"""A destination that is away or full for longer than the attempts of a table last."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.rigs.database import Database
from tests.rigs.pipeline import Only, Rig, table
from tests.rigs.recording import Recording

from levada.errors import Transient
from levada.runtime.config import RetryLimits
from levada.status import RetryPolicy


class Away(Recording):
    """Refuses the batches of some tables, and counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: frozenset[str] = frozenset()
        self.failures: Counter[str] = Counter()
        self.before_apply = self.before_copy = self._refuse

    def _refuse(self, name: str) -> None:
        if name in self.refused:
            self.failures[name] += 1
            raise Transient("destination_unavailable", "the lake does not answer", hint="check the lake")


@pytest.fixture
def away() -> Away:
    """A destination that can be away."""
    return Away()


@pytest.fixture
def rig(db: Database, tmp_path: Path, away: Away) -> Iterator[Rig]:
    """A running pipeline of two tables with three attempts each."""
    db.execute("CREATE TABLE orders (id int PRIMARY KEY)", "CREATE TABLE items (id int PRIMARY KEY)")
    made = Rig(db, tmp_path)
    made.destination = away
    made.config = replace(made.config, freshness_s=0.1, retries=RetryLimits(3, delay_s=0.1, max_delay_s=0.2))
    made.start()
    made.wait_caught_up()
    yield made
    made.stop()


def test_all_tables_continue_by_themselves(rig: Rig, db: Database, away: Away) -> None:
    """While no table can be written, each is retried and shown as errored. All continue without a command."""
    away.refused = frozenset({"orders", "items"})
    db.execute("INSERT INTO orders VALUES (1)", "INSERT INTO items VALUES (1)")
    for name in ("orders", "items"):
        rig.wait(lambda _, name=name: away.failures[name] > 9)  # type: ignore[misc] # bound
        errored = rig.wait(lambda p, name=name: table(p, name).error is not None)  # type: ignore[misc] # bound
        error = table(errored, name).error
        assert error is not None
        assert (error.code, error.retry_policy) == ("destination_unavailable", RetryPolicy.TIMED_RETRY)
        assert error.attempts > 3
    away.refused = frozenset()
    rig.wait_caught_up()
    assert (away.applied_rows["orders"], away.applied_rows["items"]) == (1, 1)


@pytest.mark.nightly
def test_many_tables_continue_with_the_first_that_is_written(rig: Rig, db: Database, away: Away) -> None:
    """Each is shown as errored. One at a time tries the destination, and with its success all are retried at once."""
    rig.stop()
    names = [f"t{n}" for n in range(40)]
    db.execute(*(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in names))
    selected = Only("orders", "items", *names)
    rig.config = replace(rig.config, selects=selected, retries=RetryLimits(3, delay_s=0.5, max_delay_s=2))
    rig.start()
    rig.wait(lambda p: len(p.tables) == 42)
    rig.wait_caught_up()
    away.refused = frozenset(names)
    db.execute(*(f"INSERT INTO {name} VALUES (1)" for name in names))
    rig.wait(lambda p: all(t.error is not None for t in p.tables if t.table.name in names))
    tried = away.failures.total()
    rig.wait(lambda _: away.failures.total() >= tried + 3)
    away.refused = frozenset()
    rig.wait_caught_up()
    assert {name: away.applied_rows[name] for name in names} == dict.fromkeys(names, 1)


def test_a_table_that_fails_alone_needs_a_person(rig: Rig, db: Database, away: Away) -> None:
    """The same error of one table, while another one is written, is parked after its attempts."""
    away.refused = frozenset({"orders"})
    db.execute("INSERT INTO orders VALUES (1)")
    for n in range(200):
        db.execute(f"INSERT INTO items VALUES ({n})")
        progress = rig.wait(lambda p, n=n: away.applied_rows.get("items", 0) > n)  # type: ignore[misc] # bound
        error = table(progress, "orders").error
        if error is not None and error.retry_policy is RetryPolicy.MANUAL_RETRY:
            break
    else:
        raise AssertionError("the table is retried without end")
    assert error.solution == "check the lake, then: levada retry MANIFEST public.orders"
