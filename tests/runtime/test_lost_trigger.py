"""An event trigger of Levada that another session removes under a running pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import LiteralString

import pytest
from tests.rigs.database import Database
from tests.rigs.pipeline import Only, Rig

from levada.cli.render import errors


@pytest.fixture
def rig(db: Database, tmp_path: Path) -> Iterator[Rig]:
    """A pipeline over orders, not started."""
    db.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    made = Rig(db, tmp_path)
    made.config = replace(made.config, selects=Only("orders"))
    yield made
    made.stop()


@pytest.mark.sampled
@pytest.mark.parametrize(
    "removal",
    [
        ["DROP EVENT TRIGGER levada_ddl"],
        ["DROP SCHEMA levada_ddl CASCADE"],
        ["ALTER EVENT TRIGGER levada_ddl DISABLE"],
        ["ALTER EVENT TRIGGER levada_ddl DISABLE", "ALTER EVENT TRIGGER levada_ddl ENABLE ALWAYS"],
    ],
    ids=["dropped", "schema dropped", "disabled", "for a moment"],
)
def test_a_lost_trigger_is_reported(
    rig: Rig, db: Database, caplog: pytest.LogCaptureFixture, removal: list[LiteralString]
) -> None:
    """The log and the status have it, columns are followed meanwhile, and the next start creates it again."""
    rig.start()
    rig.wait_caught_up()
    db.execute(*removal)
    seen = rig.wait(lambda p: p.publication.trigger is not None)
    assert seen.publication.trigger is not None
    assert seen.publication.trigger.code == "ddl_trigger_lost"
    assert "event trigger: event trigger levada_ddl was dropped, disabled or changed" in "".join(errors(seen))
    assert "[ddl_trigger_lost]" in caplog.text
    db.execute("ALTER TABLE orders ADD COLUMN note text", "INSERT INTO orders VALUES (1, 'n')")
    rig.wait_caught_up()
    rig.stop()
    rig.start()
    rig.wait_caught_up()
    assert db.query("SELECT count(*) FROM pg_event_trigger WHERE evtenabled = 'A'") == [(2,)]
    assert rig.wait(lambda p: p.tables_by_phase == {"Ready": 1}).publication.trigger is None
