"""Random changes, replays, restarts, resyncs and foreign hands, after each of which a table has the source's rows."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.destinations.ducklake.steps import check_filters
from tests.destinations.foreign_commits import COMPACT, EXPIRE
from tests.destinations.postgres.replica import Replica
from tests.destinations.random_source import RandomSource
from tests.rigs.database import Database
from tests.rigs.lake import Lake, hadoop
from tests.servers.ducklake import DuckLake

from levada.destinations import Destination, DestinationContext
from levada.destinations.iceberg import IcebergDestination
from levada.destinations.iceberg.maintenance import FileLimits
from levada.destinations.iceberg.retention import RetentionLimits
from levada.errors import DestinationChanged
from levada.values import Watermark

__all__ = ["hadoop"]


@pytest.fixture
def replica(db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Replica:
    """An empty database to write to."""
    monkeypatch.setenv("PGUSER", "postgres")
    return Replica(db, DestinationContext("shop", tmp_path))


@pytest.fixture
def ducklake(db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DuckLake:
    """A database without a DuckLake catalog."""
    monkeypatch.setenv("PGUSER", "postgres")
    return DuckLake(db, tmp_path / "data", DestinationContext("shop", tmp_path / "work"))


@dataclass
class Iceberg:
    """A Hadoop catalog, in which a table has maintenance when a hand says so."""

    lake: Lake
    retention: RetentionLimits
    current: IcebergDestination | None = None

    def destination(self) -> IcebergDestination:
        self.current = self.lake.destination(
            maintenance={"compactEverySeconds": 1, "expireSnapshotsAfterHours": 0},
            files=FileLimits(data_files=2, delete_files=2),
            retention=self.retention,
        )
        return self.current

    def mark(self, lsn: int, epoch: int) -> Watermark:
        return self.lake.mark(lsn, epoch)

    def rows(self) -> list[dict[str, Any]]:
        return self.lake.rows()

    def maintain(self) -> bool:
        """Let the maintenance of the table be due, and run it."""
        assert self.current is not None
        table = RandomSource(0).schema.id
        assert self.current.applied(table)
        self.current._known.states[table].maintained_at = -10.0
        self.current.maintain(table)
        return False


SEEDS = range(int(os.environ.get("LEVADA_SEEDS", "1")))
STEPS = 14


class Run:
    """One random run over a destination. ``hands`` are what others do to the table or next to it."""

    def __init__(self, place: DuckLake | Iceberg | Replica, seed: int, hands: dict[str, Callable[[], bool]]) -> None:
        self.place, self.hands = place, hands
        self.source = RandomSource(seed)
        if seed % 2:
            self.source.stream.limit(piece_bytes=2000)
        self.random = self.source.random
        self.destination: Destination = place.destination()
        self.epoch = 1
        self.begin(1000)

    def begin(self, lsn: int) -> None:
        """Copy the table as of an LSN."""
        self.destination.write_table_rows(self.source.target, self.source.copied(), self.place.mark(lsn, self.epoch))

    def step(self) -> str:
        """Do something, and return its name."""
        what = self.random.choice(["batch"] * 6 + ["restart", "resync", "copy", "hand", "hand"])
        stream = self.source.stream
        if what == "hand":
            what = self.random.choice(list(self.hands))
            if self.hands[what]():
                return f"{what} of the same table: {self.copy_again()}"
        elif what == "restart":
            self.epoch += 1
            self.destination.shutdown()
            self.destination = self.place.destination()
        elif what == "resync":
            return self.resync()
        elif what == "copy":
            self.source.change()
            return self.copy_again()
        else:
            self.source.change()
            since = self.random.choice([None, None, 1000, stream.taken])
            self.apply(since)
        return what

    def apply(self, since: int | None = None) -> None:
        """Apply the changes up to now, and sometimes again."""
        batch = self.source.stream.batch(since=since)
        mark = self.place.mark(batch.until, self.epoch)
        for _ in range(self.random.choice([1, 1, 2])):
            self.destination.write_events(batch, mark)
        assert self.destination.applied(self.source.schema.id) == mark

    def copy_again(self) -> str:
        """Copy the table in place of the current rows."""
        if self.random.random() < 0.5:
            self.destination.drop_table_for_copy(self.source.target, self.epoch)
        until = self.source.stream.batch().until
        self.begin(int(until))
        return "copy"

    def resync(self) -> str:
        """Write a shadow copy, which takes changes, and swap it."""
        stream, table = self.source.stream, self.source.schema.id
        self.apply()
        until = stream.batch().until
        self.destination.write_events(stream.batch(), self.place.mark(stream.taken, self.epoch))
        assert self.destination.copy_replacement(
            self.source.target, self.source.copied(), self.place.mark(until, self.epoch)
        )
        for _ in range(self.random.randint(0, 2)):
            self.source.change()
            batch = stream.batch(since=int(until))
            mark = self.place.mark(batch.until, self.epoch)
            self.destination.write_events(stream.batch(since=int(until)), self.place.mark(stream.taken, self.epoch))
            if not self.destination.write_replacement_events(batch, mark):
                self.destination.drop_replacement(table)
                return "resync that was given up"
            if self.random.random() < 0.3:
                assert self.destination.write_replacement_events(batch, mark)
        batch = stream.batch(since=int(until))
        mark = self.place.mark(batch.until, self.epoch)
        assert self.destination.write_replacement_events(batch, mark)
        assert self.destination.swap_replacement(table, mark)
        return "resync"


def run(
    place: DuckLake | Iceberg | Replica, seed: int, hands: dict[str, Callable[[], bool]], check: Callable[[], None]
) -> None:
    """Run some random steps, and compare the rows after each."""
    made, done = Run(place, seed, hands), ["copy"]
    for _ in range(STEPS):
        done.append(made.step())
        seen = {
            row["id"]: tuple(f"{n}={row[n]!r}" for n in sorted(c.name for c in made.source.schema.columns))
            for row in place.rows()
        }
        assert seen == made.source.expected(), (seed, done)
        if len(done) % 5 == 0:
            check()
    made.destination.shutdown()


@pytest.mark.parametrize("seed", SEEDS)
def test_ducklake(ducklake: DuckLake, seed: int) -> None:
    """DuckDB reads the rows of the source, and no filter misses a row, whatever DuckDB itself did in between."""

    def sql(*statements: str) -> Callable[[], bool]:
        def execute() -> bool:
            with ducklake.duckdb(DATA_INLINING_ROW_LIMIT=seed % 3 * 5) as connection:
                for statement in statements:
                    connection.execute(statement)
            return False

        return execute

    def foreign(statement: str) -> Callable[[], bool]:
        def execute() -> bool:
            before = ducklake.rows()
            with ducklake.duckdb(DATA_INLINING_ROW_LIMIT=seed % 3 * 5) as connection:
                connection.execute(statement)
            if ducklake.rows() == before:
                return False
            with pytest.raises(DestinationChanged):
                ducklake.destination().applied(RandomSource(0).schema.id)
            return True

        return execute

    hands = {
        "merge": sql("CALL ducklake_merge_adjacent_files('lake')"),
        "rewrite": sql("CALL ducklake_rewrite_data_files('lake', delete_threshold => 0.1)"),
        "rewrite all": sql("CALL ducklake_rewrite_data_files('lake', delete_threshold => 0)"),
        "expire": sql(
            "CALL ducklake_expire_snapshots('lake', older_than => now())",
            "CALL ducklake_cleanup_old_files('lake', cleanup_all => true)",
        ),
        "orphans": sql("CALL ducklake_delete_orphaned_files('lake', cleanup_all => true)"),
        "checkpoint": sql("CHECKPOINT"),
        "other table": sql(
            "CREATE TABLE IF NOT EXISTS shop_public.mine (a INT)",
            "INSERT INTO shop_public.mine SELECT * FROM range(20)",
            "DELETE FROM shop_public.mine WHERE a % 2 = 0",
            "UPDATE shop_public.mine SET a = a + 1",
        ),
        "delete": foreign("DELETE FROM shop_public.orders WHERE id % 3 = 0"),
        "update": foreign("UPDATE shop_public.orders SET note = 'mine' WHERE id % 3 = 0"),
        "insert": foreign("INSERT INTO shop_public.orders (id) VALUES (-5)"),
    }

    def check() -> None:
        with ducklake.duckdb() as connection:
            check_filters(connection, "shop_public.orders")

    run(ducklake, seed, hands, check)


@pytest.mark.parametrize("seed", SEEDS)
def test_postgres(replica: Replica, seed: int) -> None:
    """The table has the rows of the source, whatever a user may do to it in between."""

    def execute(*statements: str) -> Callable[[], bool]:
        return lambda: bool(replica.db.execute(*statements))  # type: ignore[arg-type]

    hands = {
        "vacuum": execute("VACUUM FULL shop_public.orders"),
        "view": execute("CREATE OR REPLACE VIEW seen AS SELECT id FROM shop_public.orders"),
        "index": execute("CREATE INDEX ON shop_public.orders (note text_pattern_ops) WHERE length(note) < 9"),
        "grant": execute("GRANT SELECT ON shop_public.orders TO PUBLIC"),
        "reindex": execute("REINDEX TABLE shop_public.orders"),
    }
    run(replica, seed, hands, lambda: None)
    assert replica.db.query("SELECT count(*) FROM pg_class WHERE starts_with(relname, '_levada_')") == [(0,)]


@pytest.mark.parametrize("seed", SEEDS)
def test_iceberg(hadoop: Lake, seed: int) -> None:
    """Spark and PyIceberg read the rows of the source, whatever is compacted and expired, by the engine or another."""
    if seed % 3 == 2:
        hadoop.manifest["formatVersion"] = 3
    place = Iceberg(hadoop, RetentionLimits(newest=1 + seed % 5, together=1 + seed % 4, intervals=(), longest=0))

    def sql(*statements: str) -> Callable[[], bool]:
        def execute() -> bool:
            for statement in statements:
                hadoop.sql(statement)
            return False

        return execute

    def foreign(statement: str) -> Callable[[], bool]:
        def execute() -> bool:
            before = hadoop.iceberg().current_snapshot()
            hadoop.sql(statement)
            if hadoop.iceberg().current_snapshot() == before:
                return False
            with pytest.raises(DestinationChanged):
                hadoop.destination().applied(RandomSource(0).schema.id)
            return True

        return execute

    hands = {
        **{f"maintenance {i}": place.maintain for i in range(9)},
        "compaction": sql(COMPACT),
        "manifests": sql("CALL {c}.system.rewrite_manifests({p})"),
        "deletes": sql("CALL {c}.system.rewrite_position_delete_files(table => {p})"),
        "expire": sql(EXPIRE),
        "compaction, expire": sql(COMPACT, EXPIRE),
        "delete": foreign("DELETE FROM {t} WHERE id % 3 = 0"),
        "update": foreign("UPDATE {t} SET note = 'theirs' WHERE id % 3 = 0"),
        "insert": foreign("INSERT INTO {t} (id) VALUES (-5)"),
    }
    run(place, seed, hands, lambda: None)
