"""A destination that does not know which changes it has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.rigs.database import Database
from tests.rigs.pipeline import Only, Rig
from tests.rigs.recording import Once
from tests.rigs.waiting import LIMIT_S

from levada.errors import Transient
from levada.stores import MemoryStore


class Forgetting(MemoryStore):
    """A store that fails to keep the position of a batch that was written."""

    fails: Any = False

    def upsert_replication_progress(self, worker: str, lsn: Any) -> Any:
        if type(self).fails and worker.startswith("table"):
            raise Transient("store_away", "the store does not answer")
        return super().upsert_replication_progress(worker, lsn)


def test_without_a_watermark_a_batch_comes_again(db: Database, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """A batch whose position was not stored is applied again after a restart. No change is ever left out."""
    db.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)")
    rig = Rig(db, tmp_path)
    request.addfinalizer(rig.stop)
    rig.config = replace(rig.config, selects=Only("orders"))
    once = Once()
    rig.destination = once
    rig.store = lambda: Forgetting("shop", rig.storage)
    rig.start()
    rig.wait_caught_up()
    Forgetting.fails = True
    try:
        db.execute("INSERT INTO orders VALUES (1)", "INSERT INTO orders VALUES (2)")
        assert rig.running is not None
        with pytest.raises(Transient):
            rig.running.wait(LIMIT_S)
        assert once.seen
    finally:
        Forgetting.fails = False
    before = list(once.seen)
    rig.start()
    db.execute("INSERT INTO orders VALUES (3)")
    rig.wait_caught_up()
    assert once.seen[: len(before)] == before
    assert once.seen[len(before) :] == [1, 2, 3]
