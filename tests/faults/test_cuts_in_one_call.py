"""Cuts of a destination that gets all tables in one call, and of tables that are copied meanwhile, through kill -9."""

from __future__ import annotations

import itertools
import json
import os
import random
import struct
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest
from tests.faults.cut_load import lake_table, listed
from tests.rigs.database import Database
from tests.rigs.engine import Engine, engine, lsn
from tests.writers import Writers

__all__ = ["engine"]

KILLS: Final = 5
ACCOUNTS: Final = 100
TABLES: Final = ("savings", "checking", "quiet")
_CREATE: Final = (
    "CREATE TABLE savings (id int PRIMARY KEY, balance bigint, note text)",
    "CREATE TABLE checking (id int PRIMARY KEY, balance bigint)",
    "CREATE TABLE quiet (id int PRIMARY KEY, balance bigint)",
    "CREATE TABLE moves (n bigserial PRIMARY KEY, xid bigint, name text, id int, amount bigint)",
    "INSERT INTO savings SELECT i, 100, repeat('x', 200) FROM generate_series(1, 100) i",
    "INSERT INTO checking SELECT i, 100 FROM generate_series(1, 100) i",
    "INSERT INTO quiet SELECT i, 100 FROM generate_series(1, 100) i",
)
_MODULE: Final = '''
from dataclasses import replace

from levada.destinations import Ordering
from levada.destinations.iceberg import IcebergDestination


class OneCallLake(IcebergDestination):
    """Iceberg with all tables in one call. A kill within the call leaves some tables ahead of others."""

    name = "one-call"
    capabilities = replace(IcebergDestination.capabilities, ordering=Ordering.PIPELINE)
'''


class Load(Writers):
    """Transactions that move money between three tables, and enter each of their changes into a fourth one."""

    def __init__(self, db: Database) -> None:
        super().__init__(db, threads=3)
        self._chances = [random.Random(seed) for seed in range(3)]
        self._numbers = itertools.count()

    def write(self, connection: Any, seed: int) -> None:
        chance = self._chances[seed]
        one, two = (chance.randrange(seed + 1, ACCOUNTS, 3) for _ in range(2))
        # One table changes rarely, so that it has nothing to apply at most cuts.
        names = chance.choice((("savings", "checking"),) * 20 + (("quiet", "savings"),))
        with connection.transaction():
            self._move(connection, names[0], one, -(amount := chance.randrange(1, 50)))
            if chance.random() < 0.03:
                self.stopped.wait(chance.uniform(1, 4))
            self._move(connection, names[1], two, amount)
        self.stopped.wait(0.01)

    def _move(self, connection: Any, name: Any, account: int, amount: int) -> None:
        connection.execute(f"UPDATE {name} SET balance = balance + {amount} WHERE id = {account}")
        connection.execute(
            "INSERT INTO moves (xid, name, id, amount) VALUES (pg_current_xact_id()::text::bigint, %s, %s, %s)",
            [name, account, amount],
        )


def commits(db: Database) -> dict[int, int]:
    """Return the commit LSN of each transaction, from the BEGIN messages of a slot that Levada does not know."""
    messages = db.query(
        "SELECT data FROM pg_logical_slot_peek_binary_changes("
        "'witness', NULL, NULL, 'proto_version', '1', 'publication_names', 'witness')"
    )
    begins = [struct.unpack(">QqI", bytes(data)[1:21]) for (data,) in messages if bytes(data)[:1] == b"B"]
    return {xid: commit for commit, _, xid in begins}


def state_at(moves: list[tuple[Any, ...]], of: dict[int, int], cut: int, table: str) -> dict[int, int]:
    """Return the balances of a table with every transaction that was committed below an LSN."""
    found = Counter(dict.fromkeys(range(1, ACCOUNTS + 1), 100))
    for xid, name, account, amount in moves:
        if name == table and of[xid] < cut:
            found[account] += amount
    return dict(found)


def tagged_rows(engine: Engine, table: str, name: str) -> dict[int, int] | None:
    """Return the balances of a table at a cut, or None without its tag."""
    read = lake_table(engine, table)
    snapshot = read.snapshot_by_name(name)
    if snapshot is None:
        return None
    rows = read.scan(snapshot_id=snapshot.snapshot_id, selected_fields=("id", "balance")).to_arrow()
    assert rows.num_rows == len(set(rows.column("id").to_pylist()))
    return dict(zip(rows.column("id").to_pylist(), rows.column("balance").to_pylist(), strict=True))


def write_package(folder: Path) -> None:
    """Write a package with the destination of one call, as pip would install it."""
    (folder / "one_call_lake.py").write_text(_MODULE)
    info = folder / "one_call_lake-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: one-call-lake\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[levada.destinations]\none-call = one_call_lake:OneCallLake\n")


@pytest.fixture(params=["iceberg", "one-call"])
def bank(request: pytest.FixtureRequest, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """An engine that makes a cut every three seconds, with one call for each table, and with one for all."""
    engine.db.execute(
        *_CREATE,
        "CREATE PUBLICATION witness FOR TABLE moves",
        "SELECT pg_create_logical_replication_slot('witness', 'pgoutput')",
    )
    settings = {
        "catalog": {"type": "Hadoop", "warehouse": f"file://{engine.warehouse}"},
        "namespace": "shop_{schema}",
    }
    destination: dict[str, Any] = {"iceberg": settings}
    if request.param == "one-call":
        site = engine.folder / "site"
        site.mkdir()
        write_package(site)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]))
        destination = {"custom": {"type": "one-call", "options": settings}}
    engine.spec = {
        "cuts": {"everySeconds": 3, "keep": 300},
        "tables": {"include": [{"schema": "public", "name": name} for name in TABLES]},
        "destination": destination,
    }
    engine.write_manifest()
    return engine


def test_every_cut_is_the_source_at_its_lsn(bank: Engine) -> None:
    """Through kills and resyncs, each table of each cut has exactly the transactions that were committed below its LSN.

    A cut that is requested while a table is copied again is complete, or is refused, or names the table that it lacks.
    """
    chance = random.Random(51)
    with Load(bank.db) as load:
        bank.start()
        for n in range(KILLS):
            bank.wait_for(lambda p: p["state"] == "Running" and p["cuts"]["kept"] > 0)
            if n in (1, 3):
                bank.levada("resync", *bank.options(), "public.checking")
                refused = bank.levada("cut", *bank.options(), f"whole{n}", check=False)
                assert refused.returncode == 0 or "checking" in refused.stdout + refused.stderr, refused
                made = bank.levada("cut", *bank.options(), f"partial{n}", "--partial", "-o", "json", check=False)
                assert json.loads(made.stdout)["phase"] in ("Complete", "Incomplete"), made
            time.sleep(chance.uniform(0.5, 6))
            bank.kill()
            bank.start()
        last = bank.wait_for(lambda p: p["state"] == "Running" and p["cuts"]["kept"] > 0)["cuts"]["lastComplete"]
        bank.wait_for(lambda p: (p["cuts"]["lastComplete"] or last)["at"] > last["at"])
        bank.levada("cut", *bank.options(), "last")
        assert load.count > 500
    found, of = listed(bank), commits(bank.db)
    moves = bank.db.query("SELECT xid, name, id, amount FROM moves")
    checked = 0
    for name, cut in found.items():
        for table in TABLES:
            rows = tagged_rows(bank, table, name) if cut["lsn"] else None
            if cut["phase"] == "Complete":
                assert rows is not None, f"{table} has no tag {name}"
            if rows is not None and cut["phase"] in ("Complete", "Incomplete"):
                assert rows == state_at(moves, of, lsn(cut["lsn"]), table), f"{table} at {name}"
                checked += 1
    assert checked >= len(TABLES) * KILLS, found
    assert found["last"]["phase"] == "Complete"
