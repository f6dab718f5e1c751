"""A destination that gets all tables in one call gets each transaction in one call, also after failures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
from tests.rigs.database import Database
from tests.rigs.pipeline import Rig, table
from tests.rigs.recording import Recording

from levada.destinations import Capabilities, Ordering
from levada.errors import LevadaError, NeedsOperator, Transient
from levada.events import Insert
from levada.runtime.config import RetryLimits
from levada.segments.batch import EventBatch
from levada.values import Durability, Watermark


class Together(Recording):
    """Keeps the ids of each call's rows. Fails for a table with ``error``."""

    capabilities: ClassVar[Capabilities] = replace(Recording.capabilities, ordering=Ordering.PIPELINE)

    def __init__(self) -> None:
        super().__init__()
        self.error: LevadaError | None = None
        self.calls: list[list[tuple[str, int]]] = []

    def write_events(self, events: EventBatch, mark: Watermark) -> Durability:
        if self.error is not None and "items" in {events.changes(t).schema.name.name for t in events.tables}:
            raise self.error
        self.calls.append([(e.schema.name.name, e.row.values["id"]) for e in events if isinstance(e, Insert)])
        return super().write_events(events, mark)

    def call_of(self, name: str, row: int) -> int | None:
        """Return the number of the call that had the row, or None."""
        return next((n for n, call in enumerate(self.calls) if (name, row) in call), None)


@pytest.fixture
def together() -> Together:
    """A destination that gets all tables in one call."""
    return Together()


@pytest.fixture
def rig(db: Database, tmp_path: Path, together: Together) -> Iterator[Rig]:
    """A running pipeline of two small tables."""
    db.execute(
        "CREATE TABLE orders (id int PRIMARY KEY)",
        "CREATE TABLE items (id int PRIMARY KEY)",
    )
    made = Rig(db, tmp_path)
    made.destination = together
    made.config = replace(made.config, freshness_s=0.2, retries=RetryLimits(max_attempts=9, delay_s=2.0))
    made.start()
    made.wait_caught_up()
    yield made
    made.stop()


BOTH = "WITH o AS (INSERT INTO orders VALUES (100) RETURNING id) INSERT INTO items SELECT id FROM o"


@pytest.mark.nightly
def test_the_others_wait_for_a_table_that_is_retried(rig: Rig, db: Database, together: Together) -> None:
    """While one table waits for its automatic retry, no call has the other part of a transaction."""
    together.error = Transient("made_up", "a made-up failure")
    db.execute("INSERT INTO items VALUES (1)")
    rig.wait(lambda p: table(p, "items").phase == "Errored")
    db.execute(BOTH)
    rig.wait(lambda p: table(p, "orders").pending_rows > 0)
    together.error = None
    rig.wait_caught_up()
    assert together.call_of("orders", 100) == together.call_of("items", 100) is not None


def test_nobody_waits_for_a_table_that_needs_a_person(rig: Rig, db: Database, together: Together) -> None:
    """The other tables go on without it. After a retry it catches up, in one call with the newest changes of others."""
    together.error = NeedsOperator("made_up", "a made-up failure", hint="do nothing")
    db.execute("INSERT INTO items VALUES (1)")
    rig.wait(lambda p: table(p, "items").phase == "Errored")
    db.execute(BOTH)
    rig.wait(lambda p: together.call_of("orders", 100) is not None)
    together.error = None
    rig.say("items", retry_nonce=1)
    rig.wait(lambda p: table(p, "items").phase != "Errored")
    rig.wait_caught_up()
    assert together.call_of("items", 1) == together.call_of("items", 100) is not None
