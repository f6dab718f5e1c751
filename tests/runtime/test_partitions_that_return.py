"""Partitions that leave their table and return, so that the catalog looks as before. Their rows changed meanwhile."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pytest
from tests.rigs.pipeline import Only, table
from tests.rigs.waiting import until
from tests.runtime.partitioned import MONTHS, Partitioned, made

from levada.runtime.config import RetryLimits, TableConfig
from levada.status import Progress
from levada.values import Lsn, OnPartitionGone, OnUnstreamable

__all__ = ["made"]

Transaction = tuple[str, ...]
_JANUARY: Final = "FOR VALUES FROM ('2026-01-01') TO ('2026-02-01')"
_FEBRUARY: Final = "FOR VALUES FROM ('2026-02-01') TO ('2026-03-01')"
_MARCH: Final = "FOR VALUES FROM ('2026-03-01') TO ('2026-04-01')"
_OUT: Final = "ALTER TABLE t DETACH PARTITION t_1"
_IN: Final = f"ALTER TABLE t ATTACH PARTITION t_1 {_JANUARY}"
_OF_T_2D: Final = "id % 2 = 0 AND id % 3 = 2"

AWAY: Final[tuple[tuple[Transaction, ...], ...]] = (
    (
        (_OUT, "UPDATE t_1 SET note = 'apart' WHERE id % 2 = 0", "DELETE FROM t_1 WHERE id % 5 = 0", _IN),
        (
            "ALTER TABLE t DETACH PARTITION t_2",
            "UPDATE t_2 SET note = 'apart in the middle'",
            f"ALTER TABLE t ATTACH PARTITION t_2 {_FEBRUARY}",
        ),
        (
            "ALTER TABLE t DETACH PARTITION t_3",
            "ALTER TABLE t_3 ADD passing int DEFAULT 3",
            "UPDATE t_3 SET note = 'apart ' || passing",
            "ALTER TABLE t_3 DROP passing",
            f"ALTER TABLE t ATTACH PARTITION t_3 {_MARCH}",
        ),
    ),
    (
        (_OUT, "TRUNCATE t_1", "INSERT INTO t_1 VALUES (9001, '2026-01-03', 'a', 'apart')", _IN),
        (
            "ALTER TABLE t_2 DETACH PARTITION t_2d",
            f"DELETE FROM t_2d WHERE {_OF_T_2D}",
            "ALTER TABLE t_2 ATTACH PARTITION t_2d DEFAULT",
        ),
    ),
)
"""Transactions after which each partition has the bounds that it had, in groups that concern different partitions."""
MOVED: Final[tuple[Transaction, ...]] = (
    (
        _OUT,
        "UPDATE t_1 SET ts = ts + interval '1 year', note = 'later'",
        "ALTER TABLE t_1 RENAME TO t_13",
        "ALTER TABLE t ATTACH PARTITION t_13 FOR VALUES FROM ('2027-01-01') TO ('2027-02-01')",
        f"CREATE TABLE t_1 PARTITION OF t {_JANUARY}",
        "INSERT INTO t VALUES (9002, '2026-01-03', 'a', 'new')",
    ),
    (
        "ALTER TABLE t DETACH PARTITION t_3",
        "ALTER TABLE t DETACH PARTITION t_1",
        "UPDATE t_1 SET ts = ts + interval '59 days', note = 'swapped'",
        "TRUNCATE t_3",
        f"ALTER TABLE t ATTACH PARTITION t_1 {_MARCH}",
        f"ALTER TABLE t ATTACH PARTITION t_3 {_JANUARY}",
        "INSERT INTO t VALUES (9003, '2026-01-03', 'a', 'new')",
    ),
    (
        "ALTER TABLE t DETACH PARTITION t_0",
        "CREATE TABLE t_9 PARTITION OF t FOR VALUES FROM ('2026-04-01') TO ('2026-05-01')",
        "WITH gone AS (DELETE FROM t_0 WHERE ts >= '2026-04-01' AND ts < '2026-05-01' RETURNING *)"
        " INSERT INTO t SELECT * FROM gone WHERE id % 2 = 0",
        "ALTER TABLE t ATTACH PARTITION t_0 DEFAULT",
    ),
)
"""Transactions after which rows are within the bounds of another partition than before."""


def play(made: Partitioned, *statements: str) -> None:
    """Play statements in one transaction."""
    with made.db.connect() as connection, connection.transaction():
        for statement in statements:
            connection.execute(statement)  # type: ignore[arg-type]


def end_equal(made: Partitioned) -> None:
    """Wait until the table is Ready with all that is committed now. It is equal then, with or without a copy."""
    ((text,),) = made.db.query("SELECT pg_current_wal_insert_lsn()::text")
    lsn = Lsn.parse(text)

    def ready(progress: Progress) -> bool:
        return progress.ready and table(progress, "t").error is None and (progress.verified_lsn or 0) >= lsn

    made.rig.wait(ready)
    made.rig.wait_caught_up()
    assert made.read() == made.source()


@pytest.mark.parametrize("trigger", [False, pytest.param(True, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("made", ["postgres", pytest.param("ducklake", marks=pytest.mark.nightly)], indirect=True)
def test_a_partition_that_returns(made: Partitioned, trigger: bool) -> None:
    """Whatever is written to a partition while it is detached is in the table once it is attached, without a copy."""
    made.db.execute(*MONTHS)
    made.rig.change(ddl_trigger=trigger)
    made.start()
    for transactions in AWAY:
        for statements in transactions:
            play(made, *statements)
        end_equal(made)
    assert made.read_leaves() == {"t_1", "t_2a", "t_2d", "t_3"}


@pytest.mark.parametrize("trigger", [False, pytest.param(True, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("made", ["postgres"], indirect=True)
def test_a_partition_that_returns_to_another_place(made: Partitioned, trigger: bool) -> None:
    """The table is equal, if need be by a copy of it, since other partitions have rows within the former bounds."""
    made.db.execute(*MONTHS)
    made.rig.change(ddl_trigger=trigger, default_table=TableConfig(on_unstreamable=OnUnstreamable.RESYNC))
    made.rig.change(retries=RetryLimits(delay_s=0.1, max_delay_s=0.1))
    made.start()
    for statements in MOVED:
        play(made, *statements)
        end_equal(made)


@pytest.mark.nightly
@pytest.mark.parametrize("made", ["postgres"], indirect=True)
def test_a_partition_that_returns_to_kept_rows(made: Partitioned) -> None:
    """Its rows replace those that are kept. Those that were deleted while it was detached stay."""
    keep = TableConfig(on_unstreamable=OnUnstreamable.HOLD, on_partition_gone=OnPartitionGone.KEEP)
    made.rig.change(ddl_trigger=False, default_table=keep)
    made.db.execute(*MONTHS)
    made.start()
    before = made.source()
    play(made, _OUT, "UPDATE t_1 SET note = 'apart'", "DELETE FROM t_1 WHERE id % 5 = 0", _IN)
    deleted = {row for row in before if row[0] not in {now[0] for now in made.source()}}
    assert deleted
    made.settle(deleted)
    assert made.read_leaves() == {"t_1"}


GONE: Final[tuple[Transaction, ...]] = (
    (
        "CREATE TABLE t_4 PARTITION OF t FOR VALUES FROM ('2026-06-01') TO ('2026-07-01')",
        "INSERT INTO t VALUES (9100, '2026-06-03', 'a', 'gone with its partition')",
        "DROP TABLE t_4",
    ),
    (
        "CREATE TABLE t_5 PARTITION OF t FOR VALUES FROM ('2026-06-01') TO ('2026-07-01') PARTITION BY LIST (kind)",
        "CREATE TABLE t_5d PARTITION OF t_5 DEFAULT",
        "INSERT INTO t VALUES (9101, '2026-06-03', 'a', 'detached with its partition')",
        "ALTER TABLE t DETACH PARTITION t_5",
    ),
    (
        "CREATE TABLE t_6 PARTITION OF t FOR VALUES FROM ('2026-07-01') TO ('2026-08-01')",
        "INSERT INTO t VALUES (9102, '2026-07-03', 'a', 'gone')",
        "ALTER TABLE t DETACH PARTITION t_6",
        "TRUNCATE t_6",
        "ALTER TABLE t ATTACH PARTITION t_6 FOR VALUES FROM ('2026-07-01') TO ('2026-08-01')",
    ),
    (
        "ALTER TABLE t ATTACH PARTITION u FOR VALUES FROM ('2026-09-01') TO ('2026-10-01')",
        "UPDATE t SET note = 'written as a partition' WHERE id >= 9200",
        "ALTER TABLE t DETACH PARTITION u",
    ),
)
"""Transactions after which no partition is left in which rows were written, or only an empty one."""


@pytest.mark.parametrize("trigger", [False, pytest.param(True, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("made", ["postgres"], indirect=True)
def test_a_partition_that_comes_and_goes(made: Partitioned, trigger: bool) -> None:
    """Rows that were streamed with a partition leave with it, although the catalog never showed it.

    A table of the pipeline that was a partition for a while has the rows that were written then.
    """
    u = "CREATE TABLE u (id bigint, ts timestamptz, kind text, note text, PRIMARY KEY (id, ts, kind))"
    made.db.execute(*MONTHS, u, "INSERT INTO u VALUES (9200, '2026-09-05', 'a', 'n'), (9201, '2026-09-06', 'a', 'n')")
    again = TableConfig(on_unstreamable=OnUnstreamable.RESYNC)
    made.rig.change(ddl_trigger=trigger, default_table=again, selects=Only("t", "u"), discovery_s=0.5)
    made.rig.change(retries=RetryLimits(delay_s=0.1, max_delay_s=0.1))
    made.start()
    for statements in GONE:
        play(made, *statements)
        end_equal(made)
    made.rig.wait(lambda p: set(made.db.query("SELECT * FROM u")) == set(made.db.query("SELECT * FROM copy.u")))


@pytest.mark.nightly
@pytest.mark.parametrize("made", ["postgres"], indirect=True)
def test_a_partition_that_returns_while_the_engine_is_stopped(made: Partitioned) -> None:
    """The first look at the catalog after the start shows it."""
    made.db.execute(*MONTHS)
    made.rig.change(ddl_trigger=False)
    made.start()
    made.rig.stop()
    for statements in AWAY[0]:
        play(made, *statements)
    made.rig.start()
    end_equal(made)


@pytest.mark.parametrize("trigger", [False, pytest.param(True, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("made", ["postgres"], indirect=True)
def test_a_partition_that_is_detached_concurrently(made: Partitioned, trigger: bool) -> None:
    """Rows that are written to it before and while the statement waits are those of the source at the end."""
    made.db.execute(*MONTHS, "DROP TABLE t_0")
    made.rig.change(ddl_trigger=trigger, default_table=TableConfig(on_unstreamable=OnUnstreamable.RESYNC))
    made.start()
    pending = "SELECT FROM pg_inherits WHERE inhdetachpending"
    with made.db.connect() as reader, made.db.connect() as client, ThreadPoolExecutor(1) as pool:
        with reader.transaction():
            reader.execute("SELECT count(*) FROM t")
            detached = pool.submit(client.execute, "ALTER TABLE t DETACH PARTITION t_1 CONCURRENTLY")
            until(lambda: made.db.query(pending))
            made.db.execute("UPDATE t_1 SET note = 'pending'", "INSERT INTO t_1 VALUES (9300, '2026-01-05', 'a', 'p')")
            end_equal(made)
        detached.result()
    made.db.execute("UPDATE t_1 SET note = 'apart'")
    end_equal(made)
    made.db.execute(_IN)
    end_equal(made)
