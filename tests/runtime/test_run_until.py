"""The end of a wait until all tables have caught up, whatever the state of some of them."""

from __future__ import annotations

import pytest
from tests.rigs.database import Database
from tests.rigs.pipeline import Only, Rig, table

from levada.errors import NeedsOperator
from levada.status import Progress


def caught_up(rig: Rig) -> Progress:
    """Wait as the README does."""
    assert rig.running is not None
    return rig.running.run_until(rig.running.caught_up())


def refusal(rig: Rig) -> NeedsOperator:
    """Return the error that ends the wait."""
    with pytest.raises(NeedsOperator) as raised:
        caught_up(rig)
    return raised.value


def test_the_wait_ends_whatever_the_state_of_some_tables(rig: Rig, db: Database) -> None:
    """Parked tables are named once the others have caught up. Suspended ones do not count, and no table is an error."""

    def broken(name: str) -> None:
        if name == "items":
            raise NeedsOperator("row_too_large", "a row is too large", hint="levada retry MANIFEST public.items")

    rig.destination.before_copy = broken
    rig.start()
    parked = refusal(rig)
    assert parked.code == "tables_errored"
    assert "1 of 2 tables need a manual retry" in parked.message
    assert "public.items: a row is too large [row_too_large]" in parked.message
    assert "levada retry MANIFEST public.items" in parked.hint
    db.execute("INSERT INTO orders VALUES (11)")
    assert refusal(rig).code == "tables_errored"
    assert rig.destination.applied_rows == {"orders": 1}, "the others are waited for"
    rig.say("items", suspended=True)
    rig.wait(lambda p: table(p, "items").suspended)
    db.execute("INSERT INTO orders VALUES (12)")
    caught_up(rig)
    assert rig.destination.applied_rows == {"orders": 2}
    rig.say("orders", suspended=True)
    rig.wait(lambda p: table(p, "orders").suspended)
    db.execute("INSERT INTO orders VALUES (13)")
    assert caught_up(rig).pipeline == "shop"
    rig.change(selects=Only("items"))
    rig.say("items", suspended=False)
    rig.wait(lambda p: len(p.tables) == 1 and not p.tables[0].suspended)
    assert "1 of 1 tables" in refusal(rig).message
    rig.change(selects=Only())
    rig.wait(lambda p: not p.tables)
    assert refusal(rig).code == "no_tables_selected"


def test_a_requested_retry_is_waited_for(rig: Rig) -> None:
    """A table that was parked before the request does not end the wait."""

    def broken(name: str) -> None:
        if name == "items":
            raise NeedsOperator("row_too_large", "a row is too large")

    rig.destination.before_copy = broken
    rig.start()
    assert refusal(rig).code == "tables_errored"
    rig.destination.before_copy = lambda name: None
    rig.say("items", retry_nonce=1)
    assert caught_up(rig).ready
    assert rig.destination.copies_of("items") == 1
