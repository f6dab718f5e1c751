"""Keys that change while their tables are copied, of which RELATION messages show nothing under FULL."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from tests.rigs.pipeline import HELD, table
from tests.rigs.replicated import Replicated, replicated
from tests.rigs.waiting import LIMIT_S, until

import levada.runtime.copies.table_copy
from levada.capture.resolver import TableResolver
from levada.copy.group_guard import GroupGuard
from levada.errors import LevadaError, NeedsOperator
from levada.runtime.copies.table_copy import TableCopy
from levada.values import TableId

__all__ = ["replicated"]


def _create(shop: Replicated, key: str) -> None:
    """Create three small tables, so that two share a snapshot, of which t has the replica identity FULL."""
    shop.db.execute(
        f"CREATE TABLE t (id int{key}, v text)",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "INSERT INTO t SELECT i, 'copied' FROM generate_series(1, 3) i",
        "CREATE TABLE other (id int PRIMARY KEY)",
        "CREATE TABLE another (id int PRIMARY KEY)",
    )


def _after_the_locks(monkeypatch: pytest.MonkeyPatch, work: Callable[[], None]) -> None:
    """Let ``work`` run once, after the locks of the first group have ended and before its rows are written."""
    release, left = GroupGuard.release, [work]

    def released(guard: GroupGuard, tables: Collection[TableId]) -> Mapping[TableId, LevadaError]:
        found = release(guard, tables)
        if left:
            left.pop()()
        return found

    monkeypatch.setattr(GroupGuard, "release", released)


def _before_the_version(monkeypatch: pytest.MonkeyPatch, work: Callable[[], None]) -> None:
    """Let ``work`` run after the locks, before the stream has the version, as after a copy in another process."""
    begin_new, left = TableCopy.begin_new, list[Callable[[], None]]()
    monkeypatch.setattr(TableCopy, "begin_new", lambda *args: left.append(lambda: begin_new(*args)))

    def work_and_begin() -> None:
        work()
        monkeypatch.setattr(TableCopy, "begin_new", begin_new)
        left.pop()()

    _after_the_locks(monkeypatch, work_and_begin)


def _before_the_locks(monkeypatch: pytest.MonkeyPatch, work: Callable[[], None]) -> None:
    """Let ``work`` run once, after the snapshot of the first group and before its locks."""
    start, left = GroupGuard.start, [work]

    def started(guard: GroupGuard) -> Mapping[TableId, LevadaError]:
        if left:
            left.pop()()
        return start(guard)

    monkeypatch.setattr(GroupGuard, "start", started)


def _before_the_lock(monkeypatch: pytest.MonkeyPatch, work: Callable[[], None]) -> None:
    """Let ``work`` run once, after the snapshot of the first copy of one table and before its lock."""
    hold, left = levada.runtime.copies.table_copy.hold_table, [work]

    @contextmanager
    def late(*args: Any) -> Iterator[Any]:
        if args[1].name.name == "t" and left:
            left.pop()()
        with hold(*args) as guard:
            yield guard

    monkeypatch.setattr(levada.runtime.copies.table_copy, "hold_table", late)


def _received(shop: Replicated) -> None:
    """Wait until capture has everything that is committed now."""
    [(end,)] = shop.db.query("SELECT pg_current_wal_flush_lsn()::text")
    seen = f"SELECT confirmed_flush_lsn >= '{end}' FROM pg_replication_slots WHERE slot_name = 'levada_{shop.db.name}'"
    until(lambda: shop.db.query(seen) == [(True,)])


def _mode(shop: Replicated) -> str:
    """Return the mode of t, which is Ready."""
    assert shop.pipeline is not None
    return table(until(shop.pipeline.progress, lambda p: table(p, "t").phase == "Ready"), "t").mode


@pytest.mark.parametrize(
    ("moment", "copies", "code"),
    [
        (_after_the_locks, 1, "mode_changed"),
        (_before_the_version, 1, "mode_changed"),
        (_before_the_locks, 1, ""),
        (_before_the_lock, 8, "table_changed"),
    ],
)
def test_a_key_that_is_dropped_during_the_copy_is_none(
    replicated: Replicated,
    monkeypatch: pytest.MonkeyPatch,
    moment: Callable[[pytest.MonkeyPatch, Callable[[], None]], None],
    copies: int,
    code: str,
) -> None:
    """Rows that the key no longer keeps apart are never taken for one. A copy by itself is retried, here never."""
    _create(replicated, " PRIMARY KEY")

    def drop() -> None:
        replicated.db.execute("ALTER TABLE t DROP CONSTRAINT t_pkey")
        _received(replicated)

    moment(monkeypatch, drop)
    replicated.start(wait=False, copy_tables=copies, default_table=HELD)
    assert replicated.pipeline is not None
    pipeline = replicated.pipeline
    until(pipeline.progress, lambda p: all(t.phase in ("Ready", "Errored") for t in p.tables) and len(p.tables) == 3)
    replicated.db.execute("INSERT INTO t VALUES (7, 'one'), (7, 'two')")
    if code:
        with pytest.raises(NeedsOperator, match=code):
            until(pipeline.progress, pipeline.caught_up())
        return
    until(pipeline.progress, pipeline.caught_up())
    assert _mode(replicated) == "Changelog"
    assert replicated.replica.query("SELECT count(*) FROM shop_public.t") == [(5,)]


def test_the_mode_of_a_table_is_that_of_its_copy(replicated: Replicated, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row from before the snapshot, read by a catalog of after it, says nothing of the copy. A restart shows that."""
    _create(replicated, "")
    altered, make_room, relation = threading.Event(), TableCopy.make_room, TableResolver.relation

    def insert_before(*args: Any) -> Any:
        former = make_room(*args)
        if args[2].name == "t":
            replicated.db.execute("INSERT INTO t VALUES (4, 'streamed')")
        return former

    def late(*args: Any) -> Any:
        assert altered.wait(LIMIT_S)
        return relation(*args)

    monkeypatch.setattr(TableCopy, "make_room", insert_before)
    monkeypatch.setattr(TableResolver, "relation", late)
    more: dict[str, Any] = {"copy_tables": 1, "default_table": HELD, "ddl_trigger": False}
    replicated.start(wait=False, **more)
    assert replicated.pipeline is not None
    until(lambda: replicated.replica.query("SELECT to_regclass('shop_public.t') IS NOT NULL") == [(True,)])
    until(lambda: replicated.replica.query("SELECT count(*) FROM shop_public.t") == [(4,)])
    replicated.db.execute("ALTER TABLE t ADD PRIMARY KEY (id)")
    altered.set()
    replicated.wait_caught_up()
    assert _mode(replicated) == "Changelog"
    replicated.pipeline.stop()
    replicated.start(**more)
    assert _mode(replicated) == "Changelog"


@pytest.mark.parametrize(
    ("key", "alter", "mode"),
    [("", "ADD PRIMARY KEY (id)", "Changelog"), (" PRIMARY KEY", "DROP CONSTRAINT t_pkey", "Upsert")],
)
def test_a_staged_key_gives_a_table_no_other_mode(replicated: Replicated, key: str, alter: str, mode: str) -> None:
    """After a restart a table has the mode of its last copy, though a version with another key cannot be applied."""
    _create(replicated, key)
    replicated.start(default_table=HELD)
    assert _mode(replicated) == mode
    replicated.db.execute(f"ALTER TABLE t {alter}", "INSERT INTO t VALUES (4, 'streamed')")
    for _ in range(2):
        assert replicated.pipeline is not None
        parked = until(replicated.pipeline.progress, lambda p: any(t.phase == "Errored" for t in p.tables))
        assert table(parked, "t").mode == mode
        replicated.pipeline.stop()
        replicated.start(wait=False, default_table=HELD)
