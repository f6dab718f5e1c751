"""Lost answers, older drivers and changes of the catalog in the middle of a write to DuckLake."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import psycopg
import pytest
from tests.destinations.ducklake.steps import ORDERS, apply, code_of, copy
from tests.destinations.memory import MemoryRows, Stream
from tests.rigs.waiting import until
from tests.servers.ducklake import DuckLake

from levada.destinations.ducklake import DuckLakeDestination, writes
from levada.destinations.ducklake.intact import read_intact
from levada.destinations.ducklake.server import server_of
from levada.destinations.ducklake.settings import Settings
from levada.destinations.ducklake.snapshot import NextSnapshot
from levada.destinations.ducklake.state import State
from levada.destinations.ducklake.statistics import describe_files
from levada.destinations.groups import NewTable
from levada.postgres.idle_connections import IdleConnections
from levada.postgres.silence import WatchedConnection
from levada.schema import Kind, TableTarget
from levada.testing import column
from levada.testing.rows import FailingRows
from levada.values import QualifiedTable, TableId

WAITING = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%%levada_tables%%'"
"""A session that waits for another one's lock of rows of Levada's own table."""


def test_an_old_driver_writes_nothing(ducklake: DuckLake) -> None:
    """After a newer driver has written a table, batches, copies, swaps and drops of an older one are refused."""
    old, new = ducklake.destination(work="old"), ducklake.destination(work="new")
    stream = copy(ducklake, old)
    target, rows = TableTarget.of(ORDERS), MemoryRows(ORDERS, [{"id": 5, "item": "shadow", "note": None}])
    assert old.copy_replacement(target, rows, ducklake.mark(1000))
    stream.insert(id=4, item="new", note=None)
    apply(ducklake, new, stream, epoch=2)
    stream.insert(id=6, item="late", note=None)
    for run in (
        lambda: apply(ducklake, old, stream),
        lambda: old.swap_replacement(ORDERS.id, ducklake.mark(5000)),
        lambda: old.drop_table_for_copy(target, 1),
        lambda: old.write_table_rows(target, rows, ducklake.mark(5000)),
    ):
        assert code_of(run) == "stale_epoch"
    assert ducklake.items() == {1: "item 1", 2: "item 2", 3: "item 3", 4: "new"}


def test_a_group_leaves_out_a_table_that_another_writer_has_changed(ducklake: DuckLake) -> None:
    """Its rows stay until the table is copied by itself. The other table of the group is committed."""
    destination, other = ducklake.destination(), replace(ORDERS, id=TableId(17001), name=QualifiedTable("public", "b"))
    writer, rows = destination.group_writer(), [{"id": 1, "item": "a", "note": None}]

    def insert() -> None:
        ducklake.sql("INSERT INTO shop_public.orders VALUES (99, 'theirs', NULL)")

    changed = NewTable(TableTarget.of(ORDERS), FailingRows(MemoryRows(ORDERS, rows), 0, insert))
    group = [changed, NewTable(TableTarget.of(other), MemoryRows(other, rows))]
    assert set(writer.write(group, ducklake.mark(1000))) == {other.id}
    assert ducklake.items("b") == {1: "a"}
    assert ducklake.items() == {99: "theirs"}
    destination.drop_table_for_copy(TableTarget.of(ORDERS), 1)
    destination.write_table_rows(TableTarget.of(ORDERS), MemoryRows(ORDERS, rows), ducklake.mark(1000))
    assert ducklake.items() == {1: "a"}


@pytest.fixture
def lost_answers(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A call of the result loses the answer to the next commit of a snapshot, as a broken connection with TLS does."""
    state = {"asked": False, "armed": False}
    transaction, finish = WatchedConnection.transaction, NextSnapshot.finish

    @contextmanager
    def losing(self: WatchedConnection) -> Iterator[Any]:
        with transaction(self) as inner:
            yield inner
        if state["armed"]:
            state["armed"] = False
            raise psycopg.OperationalError("consuming input failed: SSL error: unexpected eof while reading")

    def finished(self: NextSnapshot) -> None:
        finish(self)
        state["armed"], state["asked"] = state["asked"], False

    monkeypatch.setattr(WatchedConnection, "transaction", losing)
    monkeypatch.setattr(NextSnapshot, "finish", finished)
    return lambda: state.update(asked=True)


def test_a_lost_answer_to_a_commit_keeps_its_files(ducklake: DuckLake, lost_answers: Callable[[], None]) -> None:
    """A batch and a copy that are committed without an answer stay as they are, and a repetition changes nothing."""
    destination = ducklake.destination()
    stream = copy(ducklake, destination)
    stream.update(id=1, item="A", note="n")
    batch = stream.batch()
    lost_answers()
    assert code_of(lambda: destination.write_events(batch, ducklake.mark(batch.until))) == "destination_unavailable"
    expected = {1: "A", 2: "item 2", 3: "item 3"}
    assert ducklake.items() == expected
    destination.write_events(batch, ducklake.mark(batch.until))
    assert ducklake.items() == expected
    lost_answers()
    rows = MemoryRows(ORDERS, [{"id": 7, "item": "copied", "note": None}])
    run = partial(destination.write_table_rows, TableTarget.of(ORDERS), rows, ducklake.mark(9000))
    assert code_of(run) == "destination_unavailable"
    assert ducklake.items() == {7: "copied"}


def test_a_lost_answer_to_a_group_keeps_its_files(ducklake: DuckLake, lost_answers: Callable[[], None]) -> None:
    """The tables are committed although the writer does not know it. A copy of each by itself replaces them."""
    destination, rows = ducklake.destination(), [{"id": 1, "item": "a", "note": None}]
    writer = destination.group_writer()
    claimed = FailingRows(MemoryRows(ORDERS, rows), 0, lost_answers)
    group = [NewTable(TableTarget.of(ORDERS), claimed)]
    assert code_of(lambda: writer.write(group, ducklake.mark(1000))) == "destination_unavailable"
    assert ducklake.items() == {1: "a"}
    again = MemoryRows(ORDERS, [{"id": 7, "item": "copied", "note": None}])
    destination.write_table_rows(TableTarget.of(ORDERS), again, ducklake.mark(9000))
    assert ducklake.items() == {7: "copied"}


def test_a_lost_answer_to_a_swap_keeps_its_files(ducklake: DuckLake, lost_answers: Callable[[], None]) -> None:
    """A shadow copy that is in the table without an answer is not added again, and its removal leaves the table."""
    destination = ducklake.destination()
    stream = copy(ducklake, destination)
    rows = MemoryRows(ORDERS, [{"id": 7, "item": "copied", "note": None}])
    assert destination.copy_replacement(TableTarget.of(ORDERS), rows, ducklake.mark(2000))
    lost_answers()
    swap = partial(destination.swap_replacement, ORDERS.id, ducklake.mark(2000))
    assert code_of(swap) == "destination_unavailable"
    assert swap() is False, "the resync starts again"
    destination.drop_replacement(ORDERS.id)
    assert ducklake.items() == {7: "copied"}
    stream = Stream(ORDERS, lsn=2000, taken=2000)
    stream.update(id=7, item="changed", note=None)
    apply(ducklake, destination, stream)
    assert ducklake.items() == {7: "changed"}
    twice = "SELECT path FROM lake.ducklake_data_file GROUP BY path HAVING count(*) > 1"
    assert ducklake.db.query(twice) == []


def test_a_column_that_is_added_during_a_batch_stays(ducklake: DuckLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's column that comes between the read of the table and the commit is kept, also next to one of ours."""
    destination = ducklake.destination()
    stream = copy(ducklake, destination)
    describe, todo = describe_files, ["ALTER TABLE shop_public.orders ADD COLUMN mine INT DEFAULT 5"]

    def described(*values: Any) -> Any:
        if todo:
            ducklake.sql(todo.pop())
        return describe(*values)

    monkeypatch.setattr("levada.destinations.ducklake.writes.describe_files", described)
    stream.alter(replace(ORDERS, columns=(*ORDERS.columns, column(4, "ours", Kind.INT8))))
    stream.insert(id=4, item="d", note=None, ours=4)
    apply(ducklake, destination, stream)
    seen = {r["id"]: (r["mine"], r["ours"]) for r in ducklake.rows()}
    assert {k: seen[k] for k in (1, 4)} == {1: (5, None), 4: (seen[4][0], 4)}


def test_an_old_driver_that_waits_for_a_newer_one(ducklake: DuckLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A drop by an old driver that begins during a newer driver's commit is refused."""
    old, new = ducklake.destination(work="old"), ducklake.destination(work="new")
    stream = copy(ducklake, old)
    save, codes = State.save, []
    thread = threading.Thread(
        target=lambda: codes.append(code_of(lambda: old.drop_table_for_copy(TableTarget.of(ORDERS), 1)))
    )

    def saving(self: State, *values: Any) -> None:
        save(self, *values)
        if not codes and not thread.ident:
            thread.start()
            until(lambda: ducklake.db.query(WAITING))

    monkeypatch.setattr(State, "save", saving)
    stream.insert(id=4, item="new", note=None)
    apply(ducklake, new, stream, epoch=2)
    thread.join()
    assert codes == ["stale_epoch"]
    assert len(ducklake.items()) == 4


def test_a_watermark_is_read_with_its_table(ducklake: DuckLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit by the driver before, while the new one reads the table, is not taken for that of another writer."""
    old, new = ducklake.destination(work="old"), ducklake.destination(work="new")
    stream = copy(ducklake, old)
    stream.insert(id=4, item="late", note=None)
    thread = threading.Thread(target=lambda: apply(ducklake, old, stream))
    read = read_intact

    def reading(*values: Any, **options: Any) -> Any:
        if threading.current_thread() is not thread and not thread.ident:
            thread.start()
            until(lambda: not thread.is_alive() or ducklake.db.query(WAITING))
        return read(*values, **options)

    monkeypatch.setattr("levada.destinations.ducklake.destination.read_intact", reading)
    assert new.applied(ORDERS.id) == ducklake.mark(1000)
    thread.join()
    assert new.applied(ORDERS.id) == ducklake.mark(stream.taken)


def test_a_table_that_is_created_during_a_copy(ducklake: DuckLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's table that gets the name between the check and the creation is not doubled."""
    destination = ducklake.destination()
    destination.startup()
    ducklake.sql("CREATE SCHEMA shop_public")
    begin, todo = NextSnapshot.begin, ["CREATE TABLE shop_public.orders AS SELECT 1 AS mine"]

    def beginning(*values: Any) -> NextSnapshot:
        if todo:
            ducklake.sql(todo.pop())
        return begin(*values)

    monkeypatch.setattr(NextSnapshot, "begin", beginning)
    assert code_of(lambda: copy(ducklake, destination)) == "table_not_ours"
    assert ducklake.sql("SELECT mine FROM shop_public.orders") == [(1,)]


def test_a_compaction_during_a_batch(ducklake: DuckLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of files that a compaction replaces between the reading and the commit of a batch are found later."""
    destination = ducklake.destination()
    stream = copy(ducklake, destination, n=3)
    stream.insert(id=4, item="item 4", note=None)
    apply(ducklake, destination, stream)
    commit, todo = writes.commit, ["CALL ducklake_merge_adjacent_files('lake')"]

    def committing(*values: Any) -> Any:
        if todo:
            with ducklake.duckdb() as connection:
                connection.execute(todo.pop())
        return commit(*values)

    monkeypatch.setattr("levada.destinations.ducklake.writes.commit", committing)
    stream.insert(id=5, item="item 5", note=None)
    apply(ducklake, destination, stream)
    assert not todo
    stream.update(id=1, item="changed", note="n")
    stream.delete(id=4)
    apply(ducklake, destination, stream)
    assert ducklake.items() == {1: "changed", 2: "item 2", 3: "item 3", 5: "item 5"}


def test_a_pooler_that_changes_the_session(ducklake: DuckLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each transaction may have another session, without the options and statements of an earlier one."""
    take = IdleConnections.take

    def pooled(self: IdleConnections) -> WatchedConnection:
        connection = take(self)
        connection.pgconn.exec_(b"DISCARD ALL")
        return connection

    monkeypatch.setattr(IdleConnections, "take", pooled)
    for setting in ("statement_timeout = '20s'", "timezone = 'Asia/Tokyo'", "default_transaction_read_only = on"):
        ducklake.db.execute(f"ALTER DATABASE {ducklake.db.name} SET {setting}")
    settings = Settings.model_validate(ducklake.settings())
    pooler = replace(server_of(settings, None), session_options="")
    destination = DuckLakeDestination(pooler, settings, ducklake.context)
    stream = copy(ducklake, destination)
    for i in range(12):
        stream.update(id=1, item=f"turn {i}", note="n")
        apply(ducklake, destination, stream)
    assert destination.applied(ORDERS.id) == ducklake.mark(stream.taken)
    with destination._database.transaction("looking") as connection:
        names = ("idle_in_transaction_session_timeout", "tcp_keepalives_idle", "statement_timeout")
        assert [connection.execute(f"SHOW {n}").fetchone() for n in names] == [("1min",), ("30",), ("0",)]
