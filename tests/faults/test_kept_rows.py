"""A table whose deleted rows are marked, while the engine is killed and the table is copied again."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from tests.rigs.database import Database
from tests.rigs.engine import Engine

pytestmark = pytest.mark.nightly

_KILLS = 4
_ROWS = "SELECT id, n, md5(long), {} FROM {} ORDER BY id"


class Model:
    """The rows of the source, and those that it has deleted, as a random history of transactions makes them."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.live: dict[int, tuple[int, str]] = {}
        self.gone: dict[int, tuple[int, str]] = {}

    def transaction(self) -> list[str]:
        """Return the statements of a transaction, of which some rows have several."""
        return [statement for _ in range(self.random.randint(1, 6)) if (statement := self._statement())]

    def _statement(self) -> str:
        key, n = self.random.randrange(60), self.random.randrange(1000)
        match self.random.choices(("insert", "update", "move", "delete", "truncate"), (30, 30, 15, 24, 1))[0]:
            case "insert" if key not in self.live:
                self.live[key] = (n, f"{key}-{n}")
                self.gone.pop(key, None)
                return f"INSERT INTO t VALUES ({key}, {n}, repeat('{key}-{n}', 500))"
            case "update" if key in self.live:
                self.live[key] = (n, self.live[key][1])
                return f"UPDATE t SET n = {n} WHERE id = {key}"
            case "move" if key in self.live and key + 60 not in self.live:
                self.live[key + 60] = self.gone[key] = self.live.pop(key)
                self.gone.pop(key + 60, None)
                return f"UPDATE t SET id = {key + 60} WHERE id = {key}"
            case "delete" if key in self.live:
                self.gone[key] = self.live.pop(key)
                return f"DELETE FROM t WHERE id = {key}"
            case "truncate":
                self.gone |= self.live
                self.live = {}
                return "TRUNCATE t"
        return ""


@pytest.mark.parametrize("seed", [1, 2])
def test_marks_survive_kills(engine: Engine, db: Database, seed: int) -> None:
    """After each kill and with resyncs, the live rows are the source's, and every other key that ever was is marked."""
    db.execute("CREATE TABLE t (id int PRIMARY KEY, n int, long text)", "ALTER TABLE t ALTER long SET STORAGE EXTERNAL")
    place: dict[str, Any] = {"host": "127.0.0.1", "port": db.server.port, "database": db.name}
    place |= {"schema": "replica", "tls": {"mode": "Disable"}, "credentialsSecretRef": {"name": "pg"}}
    tables = {"include": [{"schema": "public", "name": "t"}], "deletes": "Mark"}
    engine.spec = {"destination": {"postgres": place}, "tables": tables, "freshnessSeconds": 1}
    engine.write_manifest()
    model = Model(seed)
    for turn in range(_KILLS):
        engine.start()
        engine.wait_for(lambda p: p["tables"] and p["tables"][0]["phase"] == "Ready")
        for number in range(150):
            with db.connect() as connection, connection.transaction():
                for statement in model.transaction():
                    connection.execute(statement)  # type: ignore[arg-type]
            if number == 75 and turn % 2:
                engine.levada("resync", *engine.options(), "public.t")
        if turn % 2 == 0:
            engine.kill()
            continue
        engine.wait_for(lambda p: p["tables"][0].get("resync") is None)
        engine.wait_caught_up()
        live = db.query(_ROWS.format("NULL::timestamptz", "t"))  # type: ignore[arg-type]
        assert [row[0] for row in live] == sorted(model.live)
        shown = db.query(_ROWS.format("_levada_deleted_at", "replica.t"))  # type: ignore[arg-type]
        assert [row for row in shown if row[3] is None] == live
        marked = {row[0]: row[1] for row in shown if row[3] is not None}
        assert marked == {key: n for key, (n, _) in model.gone.items()}
        engine.assert_verified("t")
        engine.kill()
