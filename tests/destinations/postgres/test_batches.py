"""Batches of changes in PostgreSQL: rows, keys, unchanged values, TRUNCATE and transactions of several tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.destinations.memory import MemoryRows, Stream
from tests.destinations.postgres.replica import ORDERS, Replica, apply, copy
from tests.rigs.database import Database, StartPostgres

from levada.destinations import DestinationContext, Ordering
from levada.errors import DestinationChanged, NeedsOperator, Transient
from levada.schema import Kind, TableTarget
from levada.testing import Source, column, table
from levada.values import QualifiedTable, TableId


def test_copy_then_changes(replica: Replica) -> None:
    """A copy and a batch leave the last state of each row, and another process reads the same watermark."""
    destination = replica.destination()
    destination.startup()
    destination.check()
    stream = copy(replica, destination)
    assert destination.applied(ORDERS.id) == replica.mark(1000)
    stream.update(id=1, item="A", note="n")
    stream.delete(id=2)
    stream.insert(id=4, item="d", note=None)
    apply(replica, destination, stream)
    assert replica.items() == {1: "A", 3: "item 3", 4: "d"}
    assert destination.applied(ORDERS.id) == replica.mark(stream.taken)
    assert replica.destination().applied(ORDERS.id) == replica.mark(stream.taken)
    assert replica.destination().applied(TableId(1)) is None
    destination.shutdown()


def test_an_empty_table_is_created(replica: Replica) -> None:
    """A copy without rows, or without partitions, creates the table and its watermark. Changes follow."""
    destination = replica.destination()
    destination.write_table_rows(TableTarget.of(ORDERS), MemoryRows(ORDERS), replica.mark(1000))
    assert replica.rows() == []
    assert replica.destination().applied(ORDERS.id) == replica.mark(1000)
    stream = Stream(ORDERS)
    stream.insert(id=1, item="a", note=None)
    apply(replica, destination, stream)
    assert replica.items() == {1: "a"}


def test_a_batch_twice_is_a_batch_once(replica: Replica) -> None:
    """After a crash a batch comes again, with more behind it, and changes nothing that it changed before."""
    destination = replica.destination()
    stream = copy(replica, destination)
    stream.insert(id=9, item="new", note=None)
    apply(replica, destination, stream)
    stream.delete(id=9)
    again = stream.batch(since=1000)
    destination.write_events(again, replica.mark(again.until))
    destination.write_events(again, replica.mark(again.until))
    assert replica.items() == {1: "item 1", 2: "item 2", 3: "item 3"}
    assert destination.applied(ORDERS.id) == replica.mark(again.until)


def test_keys_that_change_and_come_back(replica: Replica) -> None:
    """A row that moves to another key leaves the old one. Keys are taken again within a batch and across batches."""
    destination = replica.destination()
    stream = copy(replica, destination)
    stream.update(old={"id": 1}, id=10, item="moved", note="n")
    stream.update(old={"id": 2}, id=1, item="took one", note="n")
    stream.delete(id=3)
    stream.insert(id=3, item="three again", note="n")
    apply(replica, destination, stream)
    assert replica.items() == {1: "took one", 3: "three again", 10: "moved"}
    stream.update(old={"id": 1}, id=0, item="a", note="n")
    stream.update(old={"id": 10}, id=1, item="moved", note="n")
    stream.update(old={"id": 0}, id=10, item="took one", note="n")
    apply(replica, destination, stream)
    assert replica.items() == {1: "moved", 3: "three again", 10: "took one"}


def test_unknown_values_come_from_the_row_that_is_there(replica: Replica) -> None:
    """An unchanged TOASTed value is that of the row: from the batch, or from the table, under its old key too."""
    destination = replica.destination()
    stream = copy(replica, destination)
    stream.update(id=1, item="one", note=None, unchanged=[3])
    stream.update(old={"id": 2}, id=20, item="twenty", note=None, unchanged=[3])
    stream.insert(id=4, item="four", note="long")
    stream.update(id=4, item="FOUR", note=None, unchanged=[3])
    stream.update(id=3, item="only note", note="y", unchanged=[])
    stream.update(id=3, item=None, note=None, unchanged=[2, 3])
    apply(replica, destination, stream)
    assert {r["id"]: (r["item"], r["note"]) for r in replica.rows()} == {
        1: ("one", "x" * 100),
        3: ("only note", "y"),
        4: ("FOUR", "long"),
        20: ("twenty", "x" * 100),
    }


def test_unknown_values_of_two_rows_that_exchange_their_keys(replica: Replica) -> None:
    """Two rows that exchange their keys in one batch keep their own unchanged values."""
    destination = replica.destination()
    stream = copy(replica, destination, n=0)
    stream.insert(id=1, item="a", note="note of a")
    stream.insert(id=2, item="b", note="note of b")
    apply(replica, destination, stream)
    stream.update(old={"id": 1}, id=3, item="a", note=None, unchanged=[3])
    stream.update(old={"id": 2}, id=1, item="b", note=None, unchanged=[3])
    stream.update(old={"id": 3}, id=2, item="a", note=None, unchanged=[3])
    apply(replica, destination, stream)
    assert [(r["id"], r["item"], r["note"]) for r in replica.rows()] == [(1, "b", "note of b"), (2, "a", "note of a")]


def test_an_unknown_value_of_a_row_that_is_not_there_is_an_error(replica: Replica) -> None:
    """A value that neither batch nor table has parks the table. Nothing of the batch is written."""
    destination = replica.destination()
    stream = copy(replica, destination)
    stream.insert(id=8, item="?", note=None)
    stream.update(id=77, item="?", note=None, unchanged=[3])
    with pytest.raises(NeedsOperator) as caught:
        apply(replica, destination, stream)
    assert caught.value.code == "unknown_value"
    assert destination.applied(ORDERS.id) == replica.mark(1000)
    assert len(replica.items()) == 3


def test_truncate(replica: Replica) -> None:
    """A TRUNCATE removes what was before it, in the batch and in the table, and nothing after it."""
    destination = replica.destination()
    stream = copy(replica, destination)
    stream.insert(id=5, item="gone", note=None)
    stream.truncate()
    stream.insert(id=1, item="after", note=None)
    apply(replica, destination, stream)
    assert replica.items() == {1: "after"}
    replica.db.execute("CREATE TABLE refs (id bigint REFERENCES shop_public.orders)")
    stream.truncate()
    apply(replica, destination, stream)
    assert replica.items() == {}


def test_a_large_batch_is_applied_in_pieces(replica: Replica) -> None:
    """A batch that is folded piece by piece has the same result, in one transaction."""
    destination = replica.destination()
    stream = copy(replica, destination)
    stream.limit(piece_rows=3)
    for turn in range(4):
        for i in (1, 2, 4):
            if i == 4 and not turn:
                stream.insert(id=4, item="new", note="four")
            else:
                stream.update(id=i, item=f"turn {turn}", note=None, unchanged=[3])
    stream.update(old={"id": 4}, id=5, item="five", note=None, unchanged=[3])
    apply(replica, destination, stream)
    assert replica.items() == {1: "turn 3", 2: "turn 3", 3: "item 3", 5: "five"}
    assert {r["id"]: r["note"] for r in replica.rows()}[5] == "four"


def test_a_changelog_has_every_change(replica: Replica) -> None:
    """A table without a key gets a row for each change, once, with its operation, LSN and ordinal."""
    log = replace(ORDERS, key=(), identity_attnums=())
    destination = replica.destination()
    stream = copy(replica, destination, log, n=1)
    stream.insert(id=2, item="b", note="n")
    stream.update(id=2, item="B", note=None, unchanged=[3])
    stream.delete(id=2)
    stream.truncate()
    apply(replica, destination, stream)
    again = stream.batch(since=1000)
    destination.write_events(again, replica.mark(again.until))
    with replica.db.connect() as connection:
        found = connection.execute(
            "SELECT _levada_op, id, item, _levada_commit_lsn, _levada_ordinal, _levada_unchanged"
            " FROM shop_public.orders ORDER BY _levada_commit_lsn"
        ).fetchall()
    assert found == [
        ("I", 1, "item 1", 1000, None, None),
        ("I", 2, "b", 1010, 0, None),
        ("U", 2, "B", 1020, 0, ["note"]),
        ("D", 2, None, 1030, 0, None),
        ("T", None, None, 1040, 0, None),
    ]


def test_the_ordering_is_a_setting(replica: Replica) -> None:
    """The setting chooses one transaction for each table, or one for all."""
    assert replica.destination().capabilities.ordering is Ordering.TABLE
    assert replica.destination({"ordering": "Pipeline"}).capabilities.ordering is Ordering.PIPELINE


def test_foreign_keys_between_tables_hold(replica: Replica) -> None:
    """With the ordering Pipeline, parents and children change in one transaction, in whatever order they come."""
    lines = table(column(1, "id", Kind.INT8), column(2, "order_id", Kind.INT8), id=16300, name="public.lines")
    destination = replica.destination({"ordering": "Pipeline"})
    source = Source(row_group_bytes=1, lsn=1000)
    parents, children = source.add(ORDERS), source.add(lines)
    rows = [{"id": i, "item": f"item {i}", "note": None} for i in (1, 2)]
    destination.write_table_rows(parents.target, MemoryRows(ORDERS, rows), replica.mark(1000))
    destination.write_table_rows(children.target, MemoryRows(lines, [{"id": 1, "order_id": 1}]), replica.mark(1000))
    replica.db.execute(
        "ALTER TABLE shop_public.lines ADD FOREIGN KEY (order_id) REFERENCES shop_public.orders DEFERRABLE"
    )
    parents.insert(id=3, item="c", note=None)
    children.insert(id=2, order_id=3)
    children.delete(id=1)
    parents.delete(id=1)
    batch = source.batch(parents, children)
    destination.write_events(batch, replica.mark(batch.until))
    assert list(replica.items()) == [2, 3]
    assert replica.rows("lines") == [{"id": 2, "order_id": 3}]
    assert {destination.applied(t) for t in (ORDERS.id, lines.id)} == {replica.mark(batch.until)}
    children.insert(id=9, order_id=77)
    batch = source.batch(parents, children)
    with pytest.raises(Transient) as caught:
        destination.write_events(batch, replica.mark(batch.until))
    assert caught.value.code == "destination_foreign_key"
    replica.db.execute(
        "ALTER TABLE shop_public.lines ADD FOREIGN KEY (order_id) REFERENCES shop_public.orders ON DELETE CASCADE"
    )
    with pytest.raises(DestinationChanged) as changed:
        destination.write_events(batch, replica.mark(batch.until))
    assert changed.value.code == "destination_cascade"


def test_tables_of_the_same_types_in_one_transaction(replica: Replica) -> None:
    """Tables whose columns have the same types share temporary tables, and get none of each other's rows."""
    destination = replica.destination({"ordering": "Pipeline"})
    source = Source(row_group_bytes=1, lsn=1000)
    tables = [
        source.add(replace(ORDERS, id=TableId(500 + i), name=QualifiedTable("public", f"t{i}"))) for i in range(3)
    ]
    for each in tables:
        destination.write_table_rows(
            each.target, MemoryRows(each.schema, [{"id": 1, "item": "one", "note": "n"}]), replica.mark(1000)
        )
    for i, each in enumerate(tables):
        each.update(id=1, item=f"of {i}", note=None, unchanged=[3])
        each.insert(id=10 + i, item="new", note=None)
        each.insert(id=20 + i, item="gone", note=None)
        each.delete(id=20 + i)
    batch = source.batch(*tables)
    destination.write_events(batch, replica.mark(batch.until))
    for i, name in enumerate(("t0", "t1", "t2")):
        assert [tuple(r.values()) for r in replica.rows(name)] == [(1, f"of {i}", "n"), (10 + i, "new", None)]


@pytest.mark.parametrize(
    ("type_name", "oid", "kind", "before", "after"),
    [
        ("numeric", 1700, Kind.TEXT, "1.0", "1.00"),
        ("interval", 1186, Kind.TEXT, "1 day", "24:00:00"),
        ("jsonb", 3802, Kind.JSON, "1.0", "1.00"),
        ("double precision", 701, Kind.FLOAT8, -0.0, 0.0),
    ],
)
def test_equal_keys_with_other_texts(
    replica: Replica, type_name: str, oid: int, kind: Kind, before: Any, after: Any
) -> None:
    """A key that becomes an equal one with another text, such as 1.00 for 1.0, is changed by batches and copies."""
    key = replace(column(1, "k", kind), type_name=type_name, type_oid=oid)
    schema = replace(table(key, column(2, "v", Kind.TEXT)), name=QualifiedTable("public", "orders"))
    target, destination = TableTarget.of(schema), replica.destination()
    query = "SELECT k::text, v FROM shop_public.orders"
    destination.write_table_rows(target, MemoryRows(schema, [{"k": before, "v": "a"}]), replica.mark(1000))
    (old,) = replica.db.query(query)
    stream = Stream(schema)
    stream.update(old={"k": before}, k=after, v="b")
    apply(replica, destination, stream)
    (new,) = replica.db.query(query)
    assert new[0] != old[0]
    assert new[1] == "b"
    destination.drop_table_for_copy(target, 1)
    destination.write_table_rows(target, MemoryRows(schema, [{"k": before, "v": "b"}]), replica.mark(9000))
    assert replica.db.query(query) == [(old[0], "b")]


@pytest.mark.nightly
def test_temporary_tables_of_other_tables_are_not_locked(
    start_postgres: StartPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server with few locks takes batches of any number of tables, each with columns of its own."""
    monkeypatch.setenv("PGUSER", "postgres")
    few = {"max_locks_per_transaction": "10", "max_connections": "10", "max_worker_processes": "0"}
    with start_postgres(settings=few) as server:
        replica = Replica(Database(server, "postgres"), DestinationContext("shop", tmp_path))
        destination = replica.destination()
        for number in range(1, 301):
            item = replace(column(2, "item", Kind.TEXT), type_name=f"character varying({number})", type_oid=1043)
            name = QualifiedTable("public", f"t{number}")
            schema = replace(table(column(1, "id", Kind.INT8), item), id=TableId(number), name=name)
            rows = MemoryRows(schema, [{"id": 1, "item": "a"}])
            destination.write_table_rows(TableTarget.of(schema), rows, replica.mark(1000))
            stream = Stream(schema)
            stream.update(old={"id": 1}, id=2, item=None, unchanged=[2])
            apply(replica, destination, stream)
