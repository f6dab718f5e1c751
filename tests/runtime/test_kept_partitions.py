"""Partitions with rows that go, from a table that keeps these rows."""

from __future__ import annotations

import pytest
from tests.rigs.pipeline import table
from tests.runtime.partitioned import MONTHS, Partitioned, Rows, made

from levada.runtime.config import TableConfig
from levada.values import Deletes, OnPartitionGone, OnUnstreamable

__all__ = ["made"]

KEEPING = TableConfig(on_unstreamable=OnUnstreamable.HOLD, on_partition_gone=OnPartitionGone.KEEP)


def resync(made: Partitioned, nonce: int, kept: Rows) -> None:
    """Copy the table again, and wait until the lake has the rows of the source and those that are kept."""
    made.rig.say("t", resync_nonce=nonce)
    made.rig.wait(lambda p: table(p, "t").resync_nonce == nonce and table(p, "t").resync is None and p.ready)
    made.settle(kept)


@pytest.mark.sampled
def test_rows_stay_without_their_partition(made: Partitioned) -> None:
    """DETACH, DROP and TRUNCATE of leaves, sub-trees and DEFAULT ones leave all rows, and so does a resync."""
    db = made.db
    db.execute(*MONTHS)
    made.rig.change(default_table=KEEPING)
    made.start()
    kept = made.source()
    for statement in (
        "ALTER TABLE t_2 DETACH PARTITION t_2d",
        "DROP TABLE t_2a; CREATE TABLE t_2a PARTITION OF t_2 FOR VALUES IN ('a'); INSERT INTO t VALUES (5000,"
        " '2026-02-03', 'a', 'new')",
        "ALTER TABLE t DETACH PARTITION t_0",
        "DROP TABLE t_2; CREATE TABLE t_2 PARTITION OF t FOR VALUES FROM ('2026-02-01') TO ('2026-03-01')",
        "TRUNCATE t_1; INSERT INTO t VALUES (9000, '2026-01-03', 'a', 'another')",
    ):
        with db.connect() as connection, connection.transaction():
            for part in statement.split("; "):
                connection.execute(part)  # type: ignore[arg-type]
            kept |= made.source_in(connection)
        made.settle(kept)
    db.execute("VACUUM FULL t_3", "DELETE FROM t WHERE id = 225")
    [gone] = [row for row in kept if row[0] == 225]
    made.settle(kept - {gone})
    assert made.copies() == []
    db.execute("ALTER TABLE t DETACH PARTITION t_3", "UPDATE t_3 SET note = 'apart'", "DELETE FROM t_3 WHERE id = 226")
    made.settle(kept := kept - {gone})
    db.execute("ALTER TABLE t ATTACH PARTITION t_3 FOR VALUES FROM ('2026-03-01') TO ('2026-04-01')")
    keys = {row[0] for row in made.source()}
    made.settle(kept := {row for row in kept if row[0] not in keys})
    assert made.read_leaves() == {"t_3"}
    resync(made, 1, kept)
    db.execute("DELETE FROM t WHERE id = 230")
    made.settle(kept)


@pytest.mark.sampled
@pytest.mark.parametrize("deletes", [Deletes.APPLY, Deletes.IGNORE])
@pytest.mark.parametrize("made", ["postgres"], indirect=True)
def test_rows_stay_whatever_the_bounds_are(made: Partitioned, deletes: Deletes) -> None:
    """Partitions by HASH need no copy, with deletes that are ignored too, and a resync keeps their rows."""
    made.db.execute(
        "CREATE TABLE t (id bigint PRIMARY KEY, ts timestamptz, kind text, note text) PARTITION BY HASH (id)",
        "CREATE TABLE t_1 PARTITION OF t FOR VALUES WITH (MODULUS 2, REMAINDER 0)",
        "CREATE TABLE t_2 PARTITION OF t FOR VALUES WITH (MODULUS 2, REMAINDER 1)",
        "INSERT INTO t SELECT i, '2026-01-01', 'a', 'n' FROM generate_series(1, 20) i",
    )
    made.rig.change(default_table=KEEPING if deletes is Deletes.APPLY else TableConfig(deletes=deletes))
    made.start()
    kept = made.source()
    made.db.execute("ALTER TABLE t DETACH PARTITION t_1")
    made.settle(kept)
    assert made.copies() == []
    resync(made, 1, kept)


@pytest.mark.parametrize("made", ["postgres"], indirect=True)
def test_rows_stay_without_the_trigger(made: Partitioned) -> None:
    """A look at the catalog shows that partitions are gone, and others attached."""
    made.rig.change(ddl_trigger=False, default_table=KEEPING)
    made.db.execute(*MONTHS)
    made.start()
    kept = made.source()
    with made.db.connect() as connection, connection.transaction():
        connection.execute("ALTER TABLE t DETACH PARTITION t_1")
        connection.execute("DROP TABLE t_2")
        connection.execute("CREATE TABLE t_4 (LIKE t)")
        connection.execute("INSERT INTO t_4 VALUES (9000, '2026-01-03', 'a', 'new')")
        connection.execute("ALTER TABLE t ATTACH PARTITION t_4 FOR VALUES FROM ('2026-01-01') TO ('2026-01-09')")
    made.settle(kept)


@pytest.mark.nightly
@pytest.mark.parametrize("made", ["postgres"], indirect=True)
def test_rows_of_partitions_that_go_while_the_table_is_parked(made: Partitioned) -> None:
    """The copy that ends the wait keeps them, and not the rows that were deleted meanwhile."""
    made.rig.change(default_table=KEEPING)
    made.db.execute(*MONTHS)
    made.start()
    made.db.execute("ALTER TABLE t ALTER note TYPE varchar(9) USING upper(note)")
    made.rig.wait(lambda p: table(p, "t").error)
    made.db.execute("DROP TABLE t_1", "DELETE FROM t WHERE id IN (50, 200)")
    made.db.execute("INSERT INTO t VALUES (8000, '2026-03-03', 'a', 'N')")
    made.rig.say("t", resync_nonce=1)
    in_january = {row for row in made.read() if row[1] < 1769904000}
    made.rig.wait(lambda p: p.ready and made.read() == made.source() | in_january)
    assert len(in_january) > 100
