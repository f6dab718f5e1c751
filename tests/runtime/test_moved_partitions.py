"""Partitions with rows that come or go: their rows enter or leave the destination, and the others are not read."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from itertools import count
from random import Random

import pytest
from tests.rigs.pipeline import table, wait_for
from tests.runtime.partitioned import MONTHS, Partitioned, Rows, made

from levada.apply.moves import MoveBatch
from levada.errors import Transient
from levada.runtime.config import RetryLimits, TableConfig
from levada.segments.batch import EventBatch
from levada.values import Durability, Lsn, OnPartitionGone, Watermark

__all__ = ["made"]


@pytest.mark.sampled
def test_rows_leave_with_their_partition(made: Partitioned) -> None:
    """DETACH and DROP of leaves, of sub-trees and of DEFAULT ones remove their rows. The source is not read."""
    db = made.db
    db.execute(*MONTHS)
    made.start()
    for statement in (
        "ALTER TABLE t_2 DETACH PARTITION t_2d",
        "DROP TABLE t_2a; CREATE TABLE t_2a PARTITION OF t_2 FOR VALUES IN ('a'); INSERT INTO t VALUES (5000,"
        " '2026-02-03', 'a', 'again')",
        "ALTER TABLE t DETACH PARTITION t_0",
        "ALTER TABLE t DETACH PARTITION t_1; INSERT INTO t VALUES (5001, '2026-02-04', 'a', 'between'); DROP TABLE t_2;"
        " CREATE TABLE t_2 PARTITION OF t FOR VALUES FROM ('2026-02-01') TO ('2026-03-01'); INSERT INTO t VALUES (5002,"
        " '2026-02-05', 'a', 'after')",
        "INSERT INTO t VALUES (6000, '2026-03-03', 'a', 'before'); UPDATE t SET id = id + 10000 WHERE id < 225;"
        " ALTER TABLE t DETACH PARTITION t_3; CREATE TABLE t_4 PARTITION OF t FOR VALUES FROM ('2026-03-02') TO"
        " ('2026-03-09'); INSERT INTO t SELECT * FROM (SELECT id, ts, kind, 'back' FROM t_3) r"
        " WHERE ts >= '2026-03-02' AND ts < '2026-03-09'",
    ):
        with db.connect() as connection, connection.transaction():
            for part in statement.split("; "):
                connection.execute(part)  # type: ignore[arg-type]
        made.settle()
    assert len(made.source()) > 5
    assert made.copies() == []


@pytest.mark.parametrize("made", ["postgres"], indirect=True)
def test_rows_leave_among_versions(made: Partitioned) -> None:
    """The table keeps the last of several versions of its columns in the transaction of the removal."""
    db = made.db
    db.execute(*MONTHS)
    made.start()
    with db.connect() as connection, connection.transaction():
        connection.execute("ALTER TABLE t RENAME note TO other")
        connection.execute("INSERT INTO t VALUES (6000, '2026-03-03', 'a', 'n')")
        connection.execute("ALTER TABLE t RENAME other TO note")
        connection.execute("INSERT INTO t VALUES (6001, '2026-03-03', 'a', 'n')")
        connection.execute("DROP TABLE t_1")
    ((text,),) = db.query("SELECT pg_current_wal_insert_lsn()::text")
    made.rig.wait(lambda p: table(p, "t").applied_lsn >= Lsn.parse(text))
    made.settle()
    assert made.copies() == []


@pytest.mark.parametrize("made", ["postgres"], indirect=True)
def test_bounds_that_do_not_show_the_rows(made: Partitioned) -> None:
    """A table partitioned by HASH is copied again. The error says why."""
    made.db.execute(
        "CREATE TABLE t (id bigint PRIMARY KEY, ts timestamptz, kind text, note text) PARTITION BY HASH (id)",
        "CREATE TABLE t_1 PARTITION OF t FOR VALUES WITH (MODULUS 2, REMAINDER 0)",
        "CREATE TABLE t_2 PARTITION OF t FOR VALUES WITH (MODULUS 2, REMAINDER 1)",
        "INSERT INTO t SELECT i, now(), 'a', 'n' FROM generate_series(1, 20) i",
    )
    made.start()
    made.db.execute("ALTER TABLE t DETACH PARTITION t_1")
    error = table(made.rig.wait(lambda p: table(p, "t").error), "t").error
    assert error is not None
    assert (error.code, "bounds" in error.reason) == ("partition_changed", True)
    made.rig.copy_again()
    made.rig.wait(lambda p: made.read() == made.source())
    assert made.copies()


@pytest.mark.sampled
@pytest.mark.parametrize("written", [False, True], ids=["before the commit", "after the commit"])
@pytest.mark.parametrize("made", ["postgres"], indirect=True)
def test_rows_leave_exactly_once(made: Partitioned, monkeypatch: pytest.MonkeyPatch, written: bool) -> None:
    """Rows of a new partition with the bounds of the former stay, wherever the engine ended before."""
    made.db.execute(*MONTHS)
    made.rig.change(retries=RetryLimits(delay_s=0.2, max_delay_s=0.2))
    made.start()
    ended = threading.Event()
    write = made.rig.destination.write_events

    def end(events: EventBatch, mark: Watermark) -> Durability:
        if isinstance(events, MoveBatch):
            if written:
                write(events, mark)
            ended.set()
            raise Transient("ended", "the engine ends")
        return write(events, mark)

    monkeypatch.setattr(made.rig.destination, "write_events", end)
    made.db.execute("DROP TABLE t_1")
    wait_for(ended)
    made.rig.stop()
    monkeypatch.undo()
    monkeypatch.setenv("PGUSER", "postgres")
    made.db.execute(
        "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM ('2026-01-01') TO ('2026-02-01')",
        "INSERT INTO t VALUES (7000, '2026-01-05', 'a', 'new')",
    )
    made.rig.start()
    made.rig.wait(lambda p: made.read() == made.source())
    assert made.copies() == []


@pytest.mark.sampled
def test_rows_leave_an_emptied_partition(made: Partitioned) -> None:
    """TRUNCATE of partitions removes their rows, although it is not in the stream, and rows that come later stay."""
    db = made.db
    db.execute(*MONTHS)
    made.start()
    db.execute("TRUNCATE t_1, t_2d", "INSERT INTO t VALUES (8000, '2026-03-03', 'a', 'another')")
    made.settle()
    db.execute("INSERT INTO t VALUES (8001, '2026-01-03', 'a', 'later')")
    made.settle()
    db.execute("TRUNCATE t_0", "ALTER TABLE t ADD extra int", "DROP TABLE t_1")
    made.settle()
    assert made.copies() == []


@pytest.mark.parametrize("made", ["postgres"], indirect=True)
def test_a_rewritten_partition_keeps_its_rows(made: Partitioned) -> None:
    """VACUUM FULL and CLUSTER of a partition cost nothing, also together with TRUNCATE of another one."""
    db = made.db
    db.execute(*MONTHS)
    made.start()
    db.execute("VACUUM FULL t_1", "TRUNCATE t_2a", "CLUSTER t_3 USING t_3_pkey", "DELETE FROM t WHERE id % 2 = 0")
    made.settle()
    assert made.copies() == []


@pytest.mark.parametrize("made", ["postgres"], indirect=True)
def test_a_truncate_of_the_root_within_a_savepoint(made: Partitioned) -> None:
    """It costs nothing, released, nested, in a block of PL/pgSQL, or with one that is rolled back."""
    db = made.db
    db.execute(*MONTHS)
    made.start()
    fill = "INSERT INTO t SELECT 20000 + i, '2026-01-03'::timestamptz, 'a', 'again' FROM generate_series(1, 5) i"
    both = f"{fill} UNION ALL SELECT 21000, '2026-02-03', 'a', 'again' UNION ALL SELECT 21001, '2026-03-03', 'a', ''"
    for statement in (
        "SAVEPOINT a; TRUNCATE t; RELEASE a",
        f"SAVEPOINT a; TRUNCATE t; RELEASE a; {both}",
        f"SAVEPOINT a; SAVEPOINT b; TRUNCATE t; {both}; RELEASE b; RELEASE a; SAVEPOINT a; TRUNCATE t_1; ROLLBACK TO a",
        f"DO $$ BEGIN TRUNCATE t@ {both}@ EXCEPTION WHEN division_by_zero THEN NULL@ END $$",
        "SAVEPOINT a; TRUNCATE t; ROLLBACK TO a; INSERT INTO t VALUES (22000, '2026-01-04', 'a', 'kept')",
        f"SAVEPOINT a; TRUNCATE t; {both}; RELEASE a; ALTER TABLE t_1 SET (fillfactor = 90); ALTER TABLE t ADD x int",
        "SAVEPOINT a; ALTER TABLE t DROP x; TRUNCATE t; ROLLBACK TO a; SAVEPOINT b; TRUNCATE t; ALTER TABLE t DROP x",
        "SAVEPOINT a; CREATE TABLE t_9 PARTITION OF t FOR VALUES FROM ('2026-09-01') TO ('2026-10-01'); TRUNCATE t;"
        " INSERT INTO t VALUES (23000, '2026-09-02', 'a', 'new'); RELEASE a",
    ):
        with db.connect() as connection, connection.transaction():
            for part in statement.split("; "):
                connection.execute(part.replace("@", ";"))  # type: ignore[arg-type]
        made.settle()
    assert made.copies() == []


@pytest.mark.nightly
@pytest.mark.parametrize("made", ["postgres"], indirect=True)
def test_a_partition_that_is_filled_again_after_its_root(made: Partitioned) -> None:
    """A TRUNCATE of the root within a savepoint hides none of a partition that comes later."""
    db = made.db
    db.execute(*MONTHS)
    made.rig.copy_again()
    made.start()
    with db.connect() as c, c.transaction():
        c.execute("SAVEPOINT a")
        c.execute("TRUNCATE t")
        c.execute("INSERT INTO t VALUES (1, '2026-01-03', 'a', 'first'), (2, '2026-02-03', 'a', 'first')")
        c.execute("RELEASE a")
    with db.connect() as c, c.transaction():
        c.execute("SAVEPOINT a")
        c.execute("TRUNCATE t_0, t_1, t_2, t_3")
        c.execute("INSERT INTO t VALUES (3, '2026-01-04', 'a', 'second')")
    made.rig.wait(lambda p: made.read() == made.source())
    assert made.copies()


@pytest.mark.nightly
@pytest.mark.parametrize("made", ["postgres"], indirect=True)
def test_a_partition_that_is_filled_again_at_once(made: Partitioned) -> None:
    """TRUNCATE and new rows in one transaction cost a copy."""
    made.db.execute(*MONTHS)
    made.rig.copy_again()
    made.start()
    with made.db.connect() as c, c.transaction():
        c.execute("TRUNCATE t_1")
        c.execute("INSERT INTO t VALUES (9000, '2026-01-03', 'a', 'new')")
    made.rig.wait(lambda p: made.read() == made.source())
    assert made.copies()


@pytest.mark.sampled
def test_rows_enter_with_their_partition(made: Partitioned) -> None:
    """ATTACH of leaves, sub-trees and DEFAULT ones copies their rows alone, whatever is written around it."""
    db = made.db
    db.execute(*MONTHS)
    made.start()
    for statement in (
        "ALTER TABLE t DETACH PARTITION t_1; UPDATE t_1 SET note = 'apart'; DELETE FROM t_1 WHERE id = 3; ALTER TABLE t"
        " ATTACH PARTITION t_1 FOR VALUES FROM ('2026-01-01') TO ('2026-02-01'); UPDATE t SET note = 'back'"
        " WHERE id % 2 = 0; DELETE FROM t WHERE id = 5; UPDATE t SET ts = '2026-02-02' WHERE id = 7",
        "ALTER TABLE t DETACH PARTITION t_2; ALTER TABLE t DETACH PARTITION t_0",
        "ALTER TABLE t ATTACH PARTITION t_2 FOR VALUES FROM ('2026-02-01') TO ('2026-03-01'); ALTER TABLE t ATTACH"
        " PARTITION t_0 DEFAULT",
        "ALTER TABLE t DETACH PARTITION t_3",
        "ALTER TABLE t ATTACH PARTITION t_3 FOR VALUES FROM ('2026-03-01') TO ('2026-04-01'); UPDATE t"
        " SET note = 'short' WHERE ts > '2026-03-01'; ALTER TABLE t DETACH PARTITION t_3",
        "ALTER TABLE t ATTACH PARTITION t_3 FOR VALUES FROM ('2026-03-01') TO ('2026-04-01'); ALTER TABLE t DETACH"
        " PARTITION t_3; DELETE FROM t_3 WHERE id % 2 = 0; ALTER TABLE t ATTACH PARTITION t_3 FOR VALUES FROM"
        " ('2026-03-01') TO ('2026-04-01')",
    ):
        with db.connect() as connection, connection.transaction():
            for part in statement.split("; "):
                connection.execute(part)  # type: ignore[arg-type]
        made.settle()
    assert len(made.source()) > 5
    assert made.read_leaves() == {"t_0", "t_1", "t_2a", "t_2d", "t_3"}


@pytest.mark.parametrize("piece_rows", [8, 500_000], ids=["in pieces", "folded together"])
@pytest.mark.parametrize("made", ["postgres"], indirect=True)
def test_rows_enter_with_values_that_no_change_has(made: Partitioned, piece_rows: int) -> None:
    """An UPDATE that leaves a long value unchanged needs the row of the snapshot, under its key there."""
    limits = made.rig.config.limits
    made.rig.change(limits=replace(limits, batches=replace(limits.batches, piece_rows=piece_rows)))
    made.db.execute(
        *MONTHS,
        "ALTER TABLE t ADD extra int",
        "ALTER TABLE t DETACH PARTITION t_1",
        "ALTER TABLE t_1 ALTER note SET STORAGE EXTERNAL",
        "UPDATE t_1 SET note = repeat(md5(id::text), 100)",
    )
    made.start()
    statements = [
        "ALTER TABLE t ATTACH PARTITION t_1 FOR VALUES FROM ('2026-01-01') TO ('2026-02-01')",
        "UPDATE t SET extra = 1 WHERE ts < '2026-02-01' AND id % 2 = 0",
    ]
    if piece_rows > 8:
        statements += [
            "UPDATE t SET id = id + 100000 WHERE ts < '2026-02-01' AND id % 3 = 0",
            "UPDATE t SET ts = '2026-02-02' WHERE ts < '2026-02-01' AND id % 5 = 0",
        ]
    with made.db.connect() as connection, connection.transaction():
        for statement in statements:
            connection.execute(statement)  # type: ignore[arg-type]
    made.settle()
    assert made.read_leaves() == {"t_1"}


@pytest.mark.parametrize("made", ["postgres"], indirect=True)
def test_rows_enter_without_the_trigger(made: Partitioned) -> None:
    """A look at the catalog shows that a partition was attached. It may have been detached for a while before."""
    made.rig.change(ddl_trigger=False)
    made.db.execute(*MONTHS, "ALTER TABLE t DETACH PARTITION t_1")
    made.start()
    with made.db.connect() as connection, connection.transaction():
        for statement in (
            "ALTER TABLE t ATTACH PARTITION t_1 FOR VALUES FROM ('2026-01-01') TO ('2026-02-01')",
            "INSERT INTO t VALUES (7000, '2026-01-05', 'a', 'new'), (7001, '2026-01-05', 'a', 'new')",
            "ALTER TABLE t DETACH PARTITION t_1",
            "DELETE FROM t_1 WHERE id = 7000",
            "ALTER TABLE t ATTACH PARTITION t_1 FOR VALUES FROM ('2026-01-01') TO ('2026-02-01')",
            "UPDATE t SET note = 'back' WHERE id % 2 = 0",
        ):
            connection.execute(statement)  # type: ignore[arg-type]
    made.settle()
    assert made.read_leaves() == {"t_1"}


@pytest.mark.sampled
@pytest.mark.parametrize("written", [False, True], ids=["before the commit", "after the commit"])
@pytest.mark.parametrize("made", ["postgres"], indirect=True)
def test_rows_enter_exactly_once(made: Partitioned, monkeypatch: pytest.MonkeyPatch, written: bool) -> None:
    """Rows of an attached partition that change afterwards are those of the source, wherever the engine ended."""
    made.db.execute(*MONTHS, "ALTER TABLE t DETACH PARTITION t_1")
    made.rig.change(retries=RetryLimits(delay_s=0.2, max_delay_s=0.2))
    made.start()
    ended = threading.Event()
    write = made.rig.destination.write_events

    def end(events: EventBatch, mark: Watermark) -> Durability:
        if isinstance(events, MoveBatch):
            if written:
                write(events, mark)
            ended.set()
            raise Transient("ended", "the engine ends")
        return write(events, mark)

    monkeypatch.setattr(made.rig.destination, "write_events", end)
    made.db.execute("ALTER TABLE t ATTACH PARTITION t_1 FOR VALUES FROM ('2026-01-01') TO ('2026-02-01')")
    wait_for(ended)
    made.rig.stop()
    monkeypatch.undo()
    monkeypatch.setenv("PGUSER", "postgres")
    made.db.execute(
        "UPDATE t SET note = 'changed' WHERE ts < '2026-02-01' AND id % 2 = 0",
        "DELETE FROM t WHERE ts < '2026-02-01' AND id % 3 = 0",
        "UPDATE t SET ts = '2026-02-02' WHERE id = 5",
        "INSERT INTO t VALUES (7000, '2026-01-05', 'a', 'new')",
    )
    made.rig.start()
    made.rig.wait(lambda p: made.read() == made.source())
    assert made.read_leaves() == {"t_1"}


class Maintenance:
    """Random maintenance of the partitions of ``t``, one for each month, with rows written around each statement."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.attached = {1, 2, 3}
        self.detached: set[int] = set()
        self.ids = count(10_000)

    @staticmethod
    def bounds(month: int) -> str:
        return f"FOR VALUES FROM ('2026-{month:02}-01') TO ('2026-{month + 1:02}-01')"

    def tables(self) -> list[str]:
        """Return statements that make the table with three partitions, and rows in each."""
        return [
            "CREATE TABLE t (id bigint, ts timestamptz, kind text, note text, PRIMARY KEY (id, ts))"
            " PARTITION BY RANGE (ts)",
            *(f"CREATE TABLE t_m{m} PARTITION OF t {self.bounds(m)}" for m in (1, 2, 3)),
            "INSERT INTO t SELECT i, '2026-01-01'::timestamptz + i * interval '7 hours', 'a', 'n'"
            " FROM generate_series(0, 300) i",
        ]

    def writes(self) -> list[str]:
        """Return statements that insert, update, move and delete rows of attached partitions."""
        found = []
        for _ in range(self.random.randrange(3)):
            to, at = self.random.choice(sorted(self.attached)), self.random.randrange(1, 28)
            found.append(f"INSERT INTO t VALUES ({next(self.ids)}, '2026-{to:02}-{at:02}', 'a', 'w')")
            found.append(f"UPDATE t SET note = note || '!' WHERE id % 7 = {self.random.randrange(7)}")
            found.append(f"UPDATE t SET ts = '2026-{to:02}-{at:02}' WHERE id % 31 = {self.random.randrange(31)}")
            found.append(f"DELETE FROM t WHERE id % 41 = {self.random.randrange(41)}")
        return found

    def step(self) -> list[str]:
        """Return the statements of one transaction."""
        kind = self.random.choice(["create", "detach", "drop", "truncate", "attach", "vacuum"])
        month = self.random.choice(sorted(self.attached))
        if len(self.attached) < 3 and kind in ("detach", "drop"):
            kind = "create"
        match kind:
            case "create":
                month = next(m for m in range(1, 12) if m not in self.attached | self.detached)
                statement = f"CREATE TABLE t_m{month} PARTITION OF t {self.bounds(month)}"
            case "attach" if self.detached:
                month = self.random.choice(sorted(self.detached))
                changed = f"UPDATE t_m{month} SET note = 'apart' WHERE id % 3 = {self.random.randrange(3)}"
                changed = self.random.choice([changed, f"TRUNCATE t_m{month}", "SELECT 1"])
                statement = f"{changed}; ALTER TABLE t ATTACH PARTITION t_m{month} {self.bounds(month)}"
            case "drop":
                statement = f"DROP TABLE t_m{month}"
            case "truncate":
                return [f"TRUNCATE t_m{month}"]
            case "vacuum":
                return [f"VACUUM FULL t_m{month}"]
            case _:
                kind, statement = "detach", f"ALTER TABLE t DETACH PARTITION t_m{month}"
        before = self.writes()
        (self.attached.discard if kind in ("detach", "drop") else self.attached.add)(month)
        (self.detached.add if kind == "detach" else self.detached.discard)(month)
        return [*before, *statement.split("; "), *self.writes()]


@pytest.mark.sampled
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(2, 8))])
def test_maintenance_of_partitions(made: Partitioned, seed: int) -> None:
    """After each statement the lake has the rows of the source, and only attached partitions were read."""
    maintenance = Maintenance(seed)
    made.db.execute(*maintenance.tables())  # type: ignore[arg-type]
    made.start()
    attached = set[str]()
    for _ in range(6):
        statements = maintenance.step()
        attached |= {match[1] for s in statements if (match := re.search(r"ATTACH PARTITION (\w+)", s))}
        with made.db.connect() as c:
            if len(statements) == 1:
                c.execute(statements[0])  # type: ignore[arg-type]
            else:
                with c.transaction():
                    for statement in statements:
                        c.execute(statement)  # type: ignore[arg-type]
        made.settle()
    # Each of them may be empty, and then it is not read.
    assert made.read_leaves() <= attached


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(2, 8))])
def test_maintenance_of_kept_partitions(made: Partitioned, seed: int) -> None:
    """With Keep, rows of a partition that goes stay as they were, until a row of the source has their key."""
    maintenance = Maintenance(seed)
    made.db.execute(*maintenance.tables())  # type: ignore[arg-type]
    made.rig.change(default_table=TableConfig(on_partition_gone=OnPartitionGone.KEEP))
    made.start()
    kept: Rows = set()
    for _ in range(6):
        statements = maintenance.step()
        with made.db.connect() as c:
            if statements[0].startswith("VACUUM"):
                c.execute(statements[0])  # type: ignore[arg-type]
                statements = []
            with c.transaction():
                for statement in statements:
                    before = made.source_in(c)
                    c.execute(statement)  # type: ignore[arg-type]
                    after = made.source_in(c)
                    if re.search("DETACH|DROP|TRUNCATE", statement):
                        kept |= before - after
                    keys = {row[:2] for row in after}
                    kept = {row for row in kept if row[:2] not in keys}
        made.settle(kept)
