"""A table copied again while writers change it and readers read it: they see all of it, at every moment."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.compute as pc
from pyiceberg.table import StaticTable
from tests.rigs.database import Database
from tests.rigs.engine import Engine

ROWS = 120_000


class Writer:
    """Transactions after which the table has as many rows as before, and they sum up to 0."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.transactions = 0
        self.error: BaseException | None = None

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        assert self.error is None, self.error

    def _run(self) -> None:
        r, ids, last = random.Random(3), list(range(1, ROWS + 1)), ROWS
        try:
            with psycopg.connect(self._db.uri, autocommit=True) as connection:
                while not self._stop.wait(0.005):
                    last += 1
                    at = r.randrange(ROWS)
                    a, b = r.sample(ids, 2)
                    with connection.transaction():
                        connection.execute("UPDATE whole SET v = v + 1 WHERE id = %s", [a])
                        connection.execute("UPDATE whole SET v = v - 1, body = 'moved' WHERE id = %s", [b])
                        connection.execute(
                            "WITH gone AS (DELETE FROM whole WHERE id = %s RETURNING v)"
                            " INSERT INTO whole SELECT %s, v, 'new' FROM gone",
                            [ids[at], last],
                        )
                        connection.execute("INSERT INTO other (v) VALUES (%s)", [last])
                    ids[at] = last
                    self.transactions += 1
        except BaseException as error:
            self.error = error


class Reader:
    """Reads the lake's table again and again, and remembers every sight that is not the whole of it."""

    def __init__(self, table: Path) -> None:
        self._metadata = table / "metadata"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.snapshots: set[int] = set()
        self.wrong: list[Any] = []

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        assert not self.wrong, self.wrong[:3]

    def _run(self) -> None:
        while not self._stop.wait(0.1):
            try:
                self._read()
            except BaseException as error:
                self.wrong.append(error)
                return

    def _read(self) -> None:
        try:
            version = (self._metadata / "version-hint.text").read_text().strip()
        except FileNotFoundError:
            # A Hadoop catalog removes it before it puts the next one there.
            return
        table = StaticTable.from_metadata(str(self._metadata / f"v{version}.metadata.json"))
        seen = table.scan(selected_fields=("id", "v")).to_arrow()
        ids, total = pc.count_distinct(seen["id"]).as_py(), pc.sum(seen["v"]).as_py()
        if (seen.num_rows, ids, total) != (ROWS, ROWS, 0):
            self.wrong.append((version, seen.num_rows, ids, total))
        snapshot = table.current_snapshot()
        assert snapshot is not None
        self.snapshots.add(snapshot.snapshot_id)


def step(progress: dict[str, Any]) -> str | None:
    """Return the step of the table's new copy, or None without one."""
    for table in progress["tables"]:
        if table["name"] == "whole" and table["resync"] is not None:
            assert table["phase"] == "Ready"
            return str(table["resync"]["step"])
    return None


def test_readers_see_a_whole_table_while_it_is_copied_again(engine: Engine, db: Database) -> None:
    """The table and another one stream on. A killed copy restarts, and then source and lake are equal."""
    db.execute(
        "CREATE TABLE whole (id int PRIMARY KEY, v int NOT NULL, body text)",
        f"INSERT INTO whole SELECT i, 0, repeat('x', 100) FROM generate_series(1, {ROWS}) i",
        "CREATE TABLE other (id bigserial PRIMARY KEY, v int)",
    )
    engine.write_manifest()
    engine.start()
    engine.wait_for(lambda p: p["ready"])
    with Writer(db) as writer, Reader(engine.warehouse / "shop_public" / "whole") as reader:
        # The copy begins before the command has ended, and may end before it on a busy machine.
        arguments = ("resync", *engine.options(), "public.whole")
        command = threading.Thread(target=engine.levada, args=arguments, kwargs={"check": False})
        command.start()
        engine.wait_for(lambda p: step(p) == "Copying")
        engine.kill()
        command.join()
        engine.start()
        engine.wait_for(lambda p: step(p) is not None)
        before = writer.transactions
        engine.wait_for(lambda p: p["ready"] and step(p) is None)
        engine.wait_for(lambda p: writer.transactions > before + 200)
    engine.wait_log("table public.whole: resynced, the shadow copy replaced the table")
    assert engine.log.count("table public.whole: Init -> DataSync") == 1
    assert len(reader.snapshots) > 5
    engine.wait_caught_up()
    engine.assert_equal("whole", "other")
    assert engine.stop() == 0, engine.log[-3000:]
