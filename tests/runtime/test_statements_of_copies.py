"""The statements and transactions that the first copies of many small tables cost, in counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.rigs.counting import Counting
from tests.rigs.database import Database, log_of
from tests.rigs.pipeline import Rig
from tests.servers.ducklake import DuckLake

from levada.destinations import Destination, DestinationContext
from levada.destinations.postgres import PostgresDestination
from levada.destinations.postgres.settings import Settings

FEW, MANY = 10, 160
STATEMENTS = 13
"""The most statements for each further table, at the source and the destination. One by one they were about 90."""
TRANSACTIONS = 1
"""The most transactions that begin with BEGIN for each further table there. One by one each table has several."""
WRITES = 1
"""The most writes of the store for each further table. One by one they were 8."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The counts of a run from the start until all tables are Ready."""

    statements: int
    transactions: int
    writes: int


@pytest.fixture(params=["ducklake", "postgres"])
def rig(request: pytest.FixtureRequest, db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """A pipeline into the database of its source, with a log of all statements there."""
    monkeypatch.setenv("PGUSER", "postgres")
    db.execute(f"ALTER DATABASE {db.name} SET log_statement = 'all'")  # type: ignore[arg-type]  # a name of the test
    context = DestinationContext("shop", tmp_path / "work")
    destination: Destination
    if request.param == "ducklake":
        destination = DuckLake(db, tmp_path / "data", context).destination()
    else:
        server = {"host": "127.0.0.1", "port": db.server.port, "database": db.name, "tls": {"mode": "Disable"}}
        destination = PostgresDestination.from_settings(Settings.model_validate({**server, "schema": "lake"}), context)
    made = Rig(db, tmp_path)
    made.storage = Counting()
    made.destination = destination  # type: ignore[assignment]  # the rig only passes it on
    made.config = replace(made.config, selects=lambda table: table.schema == "public")
    yield made
    made.stop()


def cost(rig: Rig, db: Database, names: range) -> Cost:
    """Return what the copies of further tables cost."""
    db.execute(*(f"CREATE TABLE t_{n} (id int PRIMARY KEY); INSERT INTO t_{n} VALUES (1), (2)" for n in names))  # type: ignore[arg-type]  # numbers of the test
    logged = len(log_of(db.server))
    storage = rig.storage
    assert isinstance(storage, Counting)
    storage.writes = 0
    rig.start()
    rig.wait(lambda p: len(p.tables) == names.stop and all(table.phase == "Ready" for table in p.tables))
    rig.stop()
    lines = log_of(db.server)[logged:].splitlines()
    statements = sum("LOG:  statement: " in line or "LOG:  execute " in line for line in lines)
    # Counters of the database also have the transactions of autovacuum.
    transactions = sum("LOG:  statement: BEGIN" in line for line in lines)
    return Cost(statements, transactions, storage.writes)


def test_the_statements_of_a_copy_do_not_grow_with_the_tables(rig: Rig, db: Database) -> None:
    """Each of 150 further tables costs a few, because those of a group are described, read and written together."""
    few = cost(rig, db, range(FEW))
    many = cost(rig, db, range(FEW, MANY))
    further = MANY - FEW
    assert many.statements - few.statements <= further * STATEMENTS
    assert many.transactions - few.transactions <= further * TRANSACTIONS
    assert many.writes <= further * WRITES
