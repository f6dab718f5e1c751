"""``levada run`` that is stopped by SIGSTOP while the alias moves, and goes on after another process took over."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from dataclasses import replace

from tests.faults.documents import documents
from tests.rigs.database import Database
from tests.rigs.engine import Engine
from tests.rigs.waiting import LIMIT_S
from tests.servers.http_proxy import Fate, http_proxy


def test_a_driver_that_pauses_as_the_alias_moves(engine: Engine, db: Database, opensearch: str) -> None:
    """The late request of the paused driver changes nothing, the driver ends, and the documents are the source's."""
    db.execute(
        "CREATE TABLE item (id int PRIMARY KEY, note text)",
        "INSERT INTO item SELECT i, 'first' FROM generate_series(1, 1000) i",
    )
    prefix = f"{db.name}-"
    section = {"urls": [opensearch], "prefix": prefix, "replicas": 0}
    (engine.folder / "newer").mkdir()
    newer = replace(engine, folder=engine.folder / "newer", process=None)
    with ExitStack() as ended, http_proxy(int(opensearch.rpartition(":")[2])) as proxy:
        ended.callback(newer.kill)
        staging = {"uri": f"file://{engine.folder / 'staging'}"}
        engine.spec = {
            "destination": {"opensearch": {**section, "urls": [f"http://127.0.0.1:{proxy.port}"]}},
            "staging": staging,
        }
        engine.write_manifest()
        engine.start()
        engine.wait_caught_up()
        moves = f'"alias": "{prefix}public.item"'.encode()
        proxy.catch(Fate.HELD, lambda r: r.path == "/_aliases" and moves in r.body)
        engine.levada("resync", *engine.options(), "item")
        assert proxy.caught.wait(LIMIT_S), engine.log[-3000:]
        assert engine.process is not None
        os.killpg(engine.process.pid, signal.SIGSTOP)
        try:
            newer.spec = {"destination": {"opensearch": section}, "staging": staging}
            newer.write_manifest()
            newer.start()
            db.execute("UPDATE item SET note = 'second' WHERE id % 2 = 0", "DELETE FROM item WHERE id < 100")
            newer.wait_caught_up()
            proxy.release()
        finally:
            os.killpg(engine.process.pid, signal.SIGCONT)
        assert engine.process.wait(LIMIT_S) != 0
        assert "stale_epoch" in engine.log
        db.execute("UPDATE item SET note = 'third' WHERE id % 3 = 0", "INSERT INTO item VALUES (0, 'new')")
        newer.wait_caught_up()
        found = sorted((d["id"], d["note"]) for d in documents(opensearch, f"{prefix}public.item"))
        assert found == db.query("SELECT id, note FROM item ORDER BY id")
