"""Copies into PostgreSQL: shadow copies, swaps, partitions that are written twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from tests.destinations.memory import MemoryRows
from tests.destinations.postgres.replica import ORDERS, Replica, TwiceRows, apply, copy

from levada.errors import NeedsOperator, Transient
from levada.schema import Kind, TableTarget
from levada.testing import column, table
from levada.values import QualifiedTable, TableId


def test_views_privileges_and_foreign_keys_outlast_a_resync(replica: Replica) -> None:
    """A resync changes only the rows that differ, and neither the table nor what depends on it."""
    destination = replica.destination()
    copy(replica, destination)
    replica.db.execute(
        "CREATE VIEW seen AS SELECT id, item FROM shop_public.orders",
        "CREATE TABLE refs (id bigint REFERENCES shop_public.orders DEFERRABLE)",
        "INSERT INTO refs VALUES (1)",
        "GRANT SELECT ON shop_public.orders TO PUBLIC",
        "CREATE INDEX by_item ON shop_public.orders (item)",
    )
    before = replica.db.query(
        "SELECT 'shop_public.orders'::regclass::oid, xmin, relacl FROM pg_class WHERE relname = 'orders'"
    )
    untouched = replica.db.query("SELECT xmin::text FROM shop_public.orders WHERE id = 1")
    destination.drop_table_for_copy(TableTarget.of(ORDERS), 1)
    assert destination.applied(ORDERS.id) is None
    assert len(replica.rows()) == 3, "the old rows serve until the copy is complete"
    rows = [{"id": 1, "item": "item 1", "note": "x" * 100}, {"id": 2, "item": "changed", "note": None}]
    destination.write_table_rows(TableTarget.of(ORDERS), MemoryRows(ORDERS, rows), replica.mark(2000))
    assert replica.items() == {1: "item 1", 2: "changed"}
    assert replica.db.query("SELECT count(*) FROM seen") == [(2,)]
    assert replica.db.query("SELECT xmin::text FROM shop_public.orders WHERE id = 1") == untouched
    after = replica.db.query(
        "SELECT 'shop_public.orders'::regclass::oid, xmin, relacl FROM pg_class WHERE relname = 'orders'"
    )
    assert after[0][0] == before[0][0]
    assert after[0][2] == before[0][2]
    assert replica.db.query("SELECT count(*) FROM pg_class WHERE starts_with(relname, '_levada_')") == [(0,)]


def test_a_value_that_postgresql_cannot_analyze(replica: Replica) -> None:
    """The copy is complete. The length of a range of numeric may be no double precision, so each ANALYZE fails."""
    wide = table(column(1, "id", Kind.INT8), replace(column(2, "r", Kind.TEXT), type_oid=3906, type_name="numrange"))
    rows = [{"id": i, "r": f"[0,{'9' * 400}]"} for i in range(20)]
    replica.destination().write_table_rows(TableTarget.of(wide), MemoryRows(wide, rows), replica.mark(1000))
    assert replica.db.query("SELECT count(*), max(length(r::text)) > 400 FROM shop_public.orders") == [(20, True)]
    with pytest.raises(psycopg.errors.NumericValueOutOfRange):
        replica.db.execute("ANALYZE shop_public.orders")


def test_a_replacement_while_changes_go_on(replica: Replica) -> None:
    """A shadow copy takes changes, the table serves others meanwhile, and one commit replaces its rows."""
    destination = replica.destination()
    stream = copy(replica, destination)
    target = TableTarget.of(ORDERS)
    assert destination.copy_replacement(
        target, MemoryRows(ORDERS, [{"id": 1, "item": "c1", "note": "n"}]), replica.mark(1000)
    )
    stream.insert(id=4, item="d", note=None)
    apply(replica, destination, stream)
    assert list(replica.items()) == [1, 2, 3, 4]
    batch = stream.batch(since=1000)
    assert destination.write_replacement_events(batch, replica.mark(batch.until))
    assert destination.write_replacement_events(batch, replica.mark(batch.until))
    assert destination.swap_replacement(ORDERS.id, replica.mark(batch.until))
    assert replica.items() == {1: "c1", 4: "d"}
    assert not destination.swap_replacement(ORDERS.id, replica.mark(batch.until))
    destination.drop_replacement(ORDERS.id)
    assert destination.applied(ORDERS.id) == replica.mark(batch.until)
    assert destination.copy_replacement(target, MemoryRows(ORDERS), replica.mark(3000))
    destination.drop_replacement(ORDERS.id)
    assert replica.items() == {1: "c1", 4: "d"}
    assert replica.db.query("SELECT count(*) FROM levada.destination_copies") == [(0,)]


def test_a_partition_that_is_written_twice_counts_once(replica: Replica) -> None:
    """Rows of a task whose result was lost are removed, and later ones cannot be committed."""
    destination = replica.destination()
    rows = [{"id": i, "item": "i", "note": None} for i in range(10)]
    destination.write_table_rows(TableTarget.of(ORDERS), TwiceRows(ORDERS, rows[:5], rows[5:]), replica.mark(1000))
    assert len(replica.rows()) == 10

    late: list[Any] = []

    class LateRows(MemoryRows):
        def map_partitions(self, fn: Callable[[pa.RecordBatchReader], Any]) -> list[Any]:
            late.append(fn)
            return super().map_partitions(fn)

    changelog = TableTarget.of(replace(ORDERS, key=(), id=TableId(8), name=QualifiedTable("public", "log")))
    destination.write_table_rows(changelog, LateRows(changelog.schema, rows), replica.mark(1000))
    with pytest.raises((Transient, NeedsOperator)):
        late[0](pa.RecordBatchReader.from_batches(ORDERS.arrow, [pa.RecordBatch.from_pylist(rows, ORDERS.arrow)]))
    assert len(replica.rows("log")) == 10


def test_a_failed_copy_leaves_the_table_as_it_was(replica: Replica) -> None:
    """An error in the middle of a copy changes nothing that is read, and leaves no shadow copy."""
    destination = replica.destination()
    copy(replica, destination)

    class BrokenRows(MemoryRows):
        def map_partitions(self, fn: Callable[[pa.RecordBatchReader], Any]) -> list[Any]:
            super().map_partitions(fn)
            raise Transient("source_unreachable", "gone")

    with pytest.raises(Transient) as caught:
        destination.write_table_rows(
            TableTarget.of(ORDERS), BrokenRows(ORDERS, [{"id": 7, "item": "i", "note": None}]), replica.mark(2000)
        )
    assert caught.value.code == "source_unreachable"
    assert len(replica.rows()) == 3
    assert replica.db.query("SELECT count(*) FROM pg_class WHERE starts_with(relname, '_levada_')") == [(0,)]


def test_a_resync_does_not_wait_for_readers(replica: Replica) -> None:
    """A transaction that has read the table, and stays open, does not delay the new rows, nor the guard's repair."""
    destination = replica.destination()
    copy(replica, destination)
    replica.db.execute("ALTER TABLE shop_public.orders DISABLE TRIGGER ALL")
    with replica.db.connect() as reader, reader.transaction():
        reader.execute("SELECT FROM shop_public.orders")
        copy(replica, destination, n=2, lsn=2000)
        assert reader.execute("SELECT count(*) FROM shop_public.orders").fetchone() == (2,)
    assert replica.destination().applied(ORDERS.id) == replica.mark(2000)


def test_surplus_rows_in_a_schema_with_percent_signs(replica: Replica) -> None:
    """Rows of a partition that was written twice are removed, whatever the schema's name is."""
    destination = replica.destination({"schema": "100%s %d {schema}"})
    rows = [{"id": i, "item": "i", "note": None} for i in range(10)]
    destination.write_table_rows(TableTarget.of(ORDERS), TwiceRows(ORDERS, rows), replica.mark(1000))
    assert replica.db.query('SELECT count(*) FROM "100%%s %%d public".orders') == [(10,)]
