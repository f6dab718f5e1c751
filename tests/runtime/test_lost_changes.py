"""A table that missed changes: parked for good, or copied again where the policy says so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.rigs.database import Database
from tests.rigs.pipeline import Rig, table


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
