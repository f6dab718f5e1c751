"""A table that missed changes: parked for good, or copied again where the policy says so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.rigs.database import Database
from tests.rigs.pipeline import HELD, Rig, table

from levada.runtime.config import PipelineConfig, RetryLimits, SlotConfig
from levada.runtime.tables.record import TableRecord
from levada.runtime.tables.resync_steps import Step
from levada.runtime.tables.rules import lost_copy_is_due
from levada.status import RetryPolicy
from levada.stores.phases import Errored, Ready
from levada.values import QualifiedTable, TableId


@pytest.fixture
def rig(db: Database, tmp_path: Path) -> Iterator[Rig]:
    """A pipeline over two tables, not started yet."""
    db.execute(
        "CREATE TABLE orders (id serial PRIMARY KEY, note text, secret text)",
        "CREATE TABLE items (id int PRIMARY KEY)",
    )
    made = Rig(db, tmp_path)
    yield made
    made.stop()


def miss_changes(db: Database) -> None:
    """Insert a row under a column name that Levada reserves: the stream leaves the table out from there on.

    One transaction, because a copy that begins between two of the statements is a loss of its own.
    """
    db.execute(
        "BEGIN; "
        "ALTER TABLE orders RENAME COLUMN secret TO _levada_secret; "
        "INSERT INTO orders (note) VALUES ('missed'); "
        "ALTER TABLE orders RENAME COLUMN _levada_secret TO secret; "
        "COMMIT"
    )


def test_a_table_that_missed_changes_stays_parked(rig: Rig, db: Database) -> None:
    """Under Hold the table is parked without a retry, while the other table goes on."""
    rig.start()
    rig.wait_caught_up()
    miss_changes(db)
    seen = rig.wait(lambda p: table(p, "orders").phase == "Errored")
    error = table(seen, "orders").error
    assert error is not None
    assert (error.code, error.retry_policy) == ("reserved_column_name", "NoRetry")
    db.execute("INSERT INTO items VALUES (1)")
    rig.wait(lambda p: rig.destination.applied_rows.get("items") == 1)
    assert rig.destination.copies_of("orders") == 1


def test_a_table_that_missed_changes_is_copied_again_by_policy(rig: Rig, db: Database) -> None:
    """Under Resync the table is copied again by itself, with the rows that the stream left out, and streams again."""
    rig.copy_again()
    rig.start()
    rig.wait_caught_up()
    miss_changes(db)
    rig.wait(lambda p: rig.destination.copies_of("orders") == 2 and p.ready)
    assert rig.destination.copies[-1][3] == 1, "the missed row is in the copy"
    db.execute("INSERT INTO orders (note) VALUES ('streamed')")
    rig.wait_caught_up()
    rig.wait(lambda p: rig.destination.applied_rows.get("orders") == 1)


def test_copies_after_losses_back_off() -> None:
    """The first copy after a loss is due immediately, each further one only after the retry delay."""
    config = PipelineConfig(
        name="shop",
        source=None,  # type: ignore[arg-type]  # the decision reads no source
        slot=SlotConfig("levada_shop"),
        publication=None,  # type: ignore[arg-type]  # nor a publication
        staging=None,  # type: ignore[arg-type]  # nor staging
        work_dir=Path(),
        retries=RetryLimits(delay_s=10.0),
    )
    record = TableRecord(TableId(1), QualifiedTable("public", "orders"), Ready())
    assert not lost_copy_is_due(record, config, 0.0)
    record.phase = Errored("publication_changed", "changes are gone", "", RetryPolicy.NO_RETRY)
    assert lost_copy_is_due(record, config, 0.0)
    record.retries.resynced_after_loss(config.retries, 100.0)
    assert not lost_copy_is_due(record, config, 109.0)
    assert lost_copy_is_due(record, config, 110.0)
    held = replace(config, default_table=HELD)
    assert not lost_copy_is_due(record, held, 110.0)
    record.resync.step = Step.ABANDONED
    assert not lost_copy_is_due(record, config, 110.0), "its shadow copy is removed first"
