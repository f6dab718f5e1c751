"""Cuts of all tables of a running pipeline: what is in them, and what happens to tables meanwhile."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Database
from tests.runtime.test_changes import TIMEOUT_S, Only, Rig

from levada.copy.rows import TableRows
from levada.destinations import Capabilities, NamedCut, Ordering, TableTarget
from levada.errors import DestinationChanged, LevadaError, NeedsOperator, Permanent
from levada.runtime.config import CutSchedule
from levada.runtime.stages.messages import SourceRestarted
from levada.segments.batch import EventBatch
from levada.status import CutPhase, CutProgress, Progress
from levada.stores import Cut, MemoryStore
from levada.testing import MemoryDestination, MemoryTables
from levada.values import Durability, Lsn, TableId, Watermark

TABLES = ("a", "b", "c")
TOTAL = 300


class Bank(MemoryDestination):
    """Keeps tables in memory, and calls the test's functions before batches and tags."""

    def __init__(self, place: MemoryTables) -> None:
        super().__init__(place)
        self.before_apply: Callable[[str], None] = lambda table: None
        self.before_tag: Callable[[NamedCut | None], None] = lambda cut: None
        self.before_copy: Callable[[], None] = lambda: None

    def write_events(self, events: EventBatch, mark: Watermark) -> Durability:
        for table in events.tables:
            self.before_apply(events.changes(table).schema.name.name)
        return super().write_events(events, mark)

    def copy_replacement(self, target: TableTarget, rows: TableRows, mark: Watermark) -> bool:
        self.before_copy()
        return super().copy_replacement(target, rows, mark)

    def update_cuts(
        self, table: TableId, added: NamedCut | None, removed: Collection[str], mark: Watermark
    ) -> Mapping[str, Lsn]:
        self.before_tag(added)
        return super().update_cuts(table, added, removed, mark)


class TogetherBank(Bank):
    """The same with all tables in one call."""

    capabilities = replace(Bank.capabilities, ordering=Ordering.PIPELINE)


class EndingStore(MemoryStore):
    """A store at whose write of a cut in a phase the process ends."""

    def __init__(self, rig: BankRig) -> None:
        super().__init__("shop", rig.storage)
        self.rig = rig

    def store_cut(self, cut: Cut) -> None:
        if cut.phase is self.rig.end_at:
            raise Permanent("made_up", "the process ends here")
        super().store_cut(cut)


class BankRig(Rig):
    """A pipeline of accounts in three tables, whose sum is constant in every transaction."""

    def __init__(self, db: Database, folder: Path, kind: type[Bank] = Bank) -> None:
        super().__init__(db, folder)
        self.kind, self.place = kind, MemoryTables()
        self.end_at: CutPhase | None = None
        self.store = lambda: EndingStore(self)
        self.bank = kind(self.place)
        self.change(selects=Only(*TABLES), freshness_s=0.3, batch_fill_s=0.05)

    def start(self) -> None:
        self.destination = self.bank  # type: ignore[assignment] # the rig's own kind counts rows only
        super().start()

    def restart(self) -> None:
        self.stop()
        self.bank = self.kind(self.place)
        self.start()

    def oid(self, table: str) -> TableId:
        [(oid,)] = self.db.query(f"SELECT '{table}'::regclass::oid::int")
        return TableId(oid)

    def cut(self, name: str, *, partial: bool = False) -> None:
        assert self.running is not None
        self.running.request_cut(name, partial=partial)

    def cuts(self) -> dict[str, CutProgress]:
        assert self.running is not None
        return {cut.name: cut for cut in self.running.cuts()}

    def wait_cut(self, name: str, *phases: CutPhase) -> CutProgress:
        """Wait until the cut is in one of the phases, by default one in which it has ended."""
        wanted = phases or (CutPhase.COMPLETE, CutPhase.INCOMPLETE)
        self.wait(lambda _: name in self.cuts() and self.cuts()[name].phase in wanted)
        return self.cuts()[name]

    def rows(self, table: str, name: str) -> dict[Any, Any]:
        """Return the balances of a table at a cut, by id."""
        held = {cut.name: kept for cut, kept in self.place.cuts.get(self.oid(table), {}).items()}[name]
        return {row["id"]: row["balance"] for row in held.named()}

    def tags(self, table: str) -> set[str]:
        return {cut.name for cut in self.place.cuts.get(self.oid(table), {})}

    def total(self, name: str) -> int:
        return sum(sum(self.rows(table, name).values()) for table in TABLES)

    def stored(self) -> Mapping[str, Cut]:
        store = self.store()
        store.load_cuts()
        return store.get_cuts()


def create(db: Database) -> None:
    """Create the accounts: ten in each table, with ten each."""
    for table in TABLES:
        db.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY, balance int)",
            f"INSERT INTO {table} SELECT i, 10 FROM generate_series(1, 10) i",
        )


@pytest.fixture
def rig(db: Database, tmp_path: Path) -> Iterator[BankRig]:
    """The pipeline, started and caught up."""
    create(db)
    made = BankRig(db, tmp_path)
    made.start()
    made.wait_caught_up()
    yield made
    made.stop()


class Transfers:
    """Moves money between random accounts of different tables, in a thread."""

    def __init__(self, db: Database) -> None:
        self._db, self._stop = db, threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.count = 0

    def __enter__(self) -> Transfers:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with self._db.connect() as connection:
            while not self._stop.wait(0.005):
                one, two = TABLES[self.count % 3], TABLES[(self.count + 1) % 3]
                with connection.transaction():
                    connection.execute(f"UPDATE {one} SET balance = balance - 1 WHERE id = {self.count % 10 + 1}")
                    connection.execute(f"UPDATE {two} SET balance = balance + 1 WHERE id = {self.count % 7 + 1}")
                self.count += 1


@pytest.mark.parametrize("kind", [Bank, TogetherBank])
def test_every_cut_is_consistent(db: Database, tmp_path: Path, kind: type[Bank]) -> None:
    """Under load, each scheduled cut has whole transactions only, also when tables are at different paces."""
    create(db)
    rig = BankRig(db, tmp_path, kind)
    slow = threading.Event()
    rig.bank.before_apply = lambda table: void(slow.wait(0.3 if table == "b" else 0))
    rig.change(cuts=CutSchedule(every_s=0.2, keep=100))
    rig.start()
    rig.wait_caught_up()
    try:
        with Transfers(db) as transfers:
            rig.wait(lambda p: p.cuts.kept >= 8 and transfers.count > 200)
        complete = [c for c in rig.cuts().values() if c.phase is CutPhase.COMPLETE and c.scheduled]
        totals = {c.name: rig.total(c.name) for c in complete}
        states = {str([rig.rows(table, c.name) for table in TABLES]) for c in complete}
        assert set(totals.values()) == {TOTAL}
        assert len(states) > 2, "the cuts are all of one moment, so the test shows nothing"
        lsns = [c.lsn for c in complete]
        assert lsns == sorted(lsns, key=int)  # type: ignore[arg-type] # a complete cut has an LSN
    finally:
        rig.stop()


def void(_: object) -> None:
    """Return nothing."""


def test_a_cut_has_what_was_committed_before_it(rig: BankRig, db: Database) -> None:
    """A requested cut has everything that was committed before the request, and nothing of an open transaction."""
    with db.connect() as connection:
        connection.execute("BEGIN")
        connection.execute("UPDATE a SET balance = 0 WHERE id = 1")
        connection.execute("INSERT INTO b VALUES (99, 10)")
        db.execute("UPDATE a SET balance = 7 WHERE id = 2", "UPDATE c SET balance = 13 WHERE id = 2")
        rig.cut("noon")
        found = rig.wait_cut("noon")
        connection.execute("COMMIT")
    rig.wait_caught_up()
    rig.cut("later")
    rig.wait_cut("later")
    assert (found.phase, found.tables, found.tagged, found.left_out) == (CutPhase.COMPLETE, 3, 3, ())
    assert found.lsn is not None
    assert found.committed_at is not None
    assert (rig.rows("a", "noon")[1], rig.rows("a", "noon")[2], rig.rows("c", "noon")[2]) == (10, 7, 13)
    assert 99 not in rig.rows("b", "noon")
    assert rig.rows("b", "later")[99] == 10
    assert rig.rows("a", "later")[1] == 0


def test_no_table_waits_for_another(rig: BankRig, db: Database) -> None:
    """While one table has not reached the cut, the others are tagged and apply what comes later."""
    blocked, reached = threading.Event(), threading.Event()

    def before_apply(table: str) -> None:
        if table == "b":
            reached.set()
            assert blocked.wait(TIMEOUT_S)

    rig.bank.before_apply = before_apply
    db.execute("UPDATE b SET balance = 11 WHERE id = 1", "UPDATE c SET balance = 9 WHERE id = 1")
    assert reached.wait(TIMEOUT_S)
    rig.cut("noon")
    rig.wait(lambda _: rig.cuts()["noon"].tagged == 2)
    for n in range(3):
        db.execute(f"UPDATE a SET balance = 100 + {n} WHERE id = 1", f"UPDATE b SET balance = 100 + {n} WHERE id = 1")
    rig.wait(lambda p: rig.place.tables[rig.oid("a")].rows[(1,)][2] == 102)
    assert rig.cuts()["noon"].phase is CutPhase.PENDING
    blocked.set()
    assert rig.wait_cut("noon").phase is CutPhase.COMPLETE
    assert rig.total("noon") == TOTAL
    rig.wait_caught_up()
    assert rig.place.tables[rig.oid("b")].rows[(1,)][2] == 102


def test_what_is_refused(rig: BankRig) -> None:
    """Names, tables and cuts that do not fit are refused when the cut is requested, with a code and a hint."""
    rig.cut("noon")
    rig.wait_cut("noon")
    rig.say("b", suspended=True)
    rig.wait(lambda p: any(t.suspended for t in p.tables))
    assert rig.running is not None
    pipeline = rig.running
    for request, code in [
        *((lambda name=name: rig.cut(name), "cut_name_invalid") for name in ("", "1", "main", "levada_x", "a b", "é")),
        (lambda: rig.cut("noon", partial=True), "cut_exists"),
        (lambda: rig.cut("evening"), "cut_not_ready"),
        (lambda: pipeline.drop_cut("evening"), "cut_unknown"),
    ]:
        with pytest.raises(NeedsOperator) as caught:
            request()
        assert (caught.value.code, bool(caught.value.hint)) == (code, True)
    rig.cut("evening", partial=True)
    found = rig.wait_cut("evening")
    assert (found.phase, found.tagged, found.left_out) == (CutPhase.INCOMPLETE, 2, ("public.b: suspended",))
    assert rig.tags("b") == {"noon"}


def test_a_cut_is_dropped(rig: BankRig, db: Database) -> None:
    """A dropped cut leaves no table and no trace, and its name is free. Others stay."""
    for name in ("noon", "evening"):
        rig.cut(name)
        rig.wait_cut(name)
    assert rig.running is not None
    rig.running.drop_cut("noon")
    rig.wait(lambda _: "noon" not in rig.cuts())
    assert [rig.tags(table) for table in TABLES] == [{"evening"}] * 3
    assert set(rig.stored()) == {"evening"}
    db.execute("UPDATE a SET balance = 0 WHERE id = 1")
    rig.cut("noon")
    rig.wait_cut("noon")
    assert rig.rows("a", "noon")[1] == 0


def test_the_newest_are_kept(rig: BankRig) -> None:
    """Of scheduled cuts the newest stay. One that a user requested stays until it is dropped."""
    rig.cut("mine")
    rig.wait_cut("mine")
    rig.change(cuts=CutSchedule(every_s=1.1, keep=2))
    seen: set[str] = set()

    def enough(_: Progress) -> bool:
        seen.update(c.name for c in rig.cuts().values() if c.scheduled)
        return len(seen) >= 5

    rig.wait(enough)
    rig.change(cuts=None)
    rig.wait(lambda p: p.cuts.pending is None and all(c.phase is not CutPhase.DROPPING for c in rig.cuts().values()))
    kept = {c.name for c in rig.cuts().values()} - {"mine"}
    assert len(kept) in (2, 3)
    assert kept <= set(sorted(seen | kept)[-4:])
    for table in TABLES:
        assert rig.tags(table) == kept | {"mine"}


@pytest.mark.parametrize("stage", ["before", "between", "after"])
def test_a_cut_goes_on_after_a_restart(rig: BankRig, db: Database, stage: str) -> None:
    """An engine that ends before a cut's end continues it with the same LSN, wherever it ended."""
    tagged: list[NamedCut] = []

    def before_tag(cut: NamedCut | None) -> None:
        if cut is not None:
            tagged.append(cut)
            if len(tagged) > {"before": 0, "between": 2, "after": 9}[stage]:
                raise Permanent("made_up", "the process ends here")

    rig.bank.before_tag = before_tag
    rig.end_at = CutPhase.COMPLETE if stage == "after" else None
    db.execute("UPDATE a SET balance = 5 WHERE id = 1", "UPDATE b SET balance = 15 WHERE id = 1")
    rig.cut("noon")
    assert rig.running is not None
    with pytest.raises(Permanent):
        rig.running.wait(TIMEOUT_S)
    rig.end_at = None
    [before] = rig.stored().values()
    assert before.phase is CutPhase.PENDING
    db.execute("UPDATE a SET balance = 0", "UPDATE c SET balance = 0")
    rig.restart()
    found = rig.wait_cut("noon")
    assert (found.phase, found.lsn, rig.total("noon")) == (CutPhase.COMPLETE, before.lsn, TOTAL)
    rig.wait_caught_up()
    assert rig.place.tables[rig.oid("a")].rows[(1,)][2] == 0


def test_a_table_that_passed_the_cut_is_left_out(rig: BankRig) -> None:
    """A table that has applied more than the cut, as after an engine without it, is never tagged for it."""
    rig.stop()
    store = rig.store()
    store.next_epoch()
    rig.bank = Bank(rig.place)
    tables = tuple(sorted(map(rig.oid, TABLES)))
    rig.start()
    rig.wait_caught_up()
    rig.stop()
    store.next_epoch()
    cut = Cut("past", Lsn(1), datetime(2026, 1, 1, tzinfo=UTC), None, CutPhase.PENDING, tables)
    store.store_cut(cut)
    rig.restart()
    found = rig.wait_cut("past")
    assert (found.phase, found.tagged) == (CutPhase.INCOMPLETE, 0)
    assert all("[cut_passed]" in why for why in found.left_out)
    assert all(not rig.tags(table) for table in TABLES)


def test_a_table_that_fails_is_left_out(rig: BankRig, db: Database) -> None:
    """A table whose batch fails before the cut is left out with its error. The others are complete."""
    blocked, reached = threading.Event(), threading.Event()

    def before_apply(table: str) -> None:
        if table == "b":
            reached.set()
            assert blocked.wait(TIMEOUT_S)
            raise NeedsOperator("made_up", "a made-up failure", hint="do nothing")

    rig.bank.before_apply = before_apply
    db.execute("UPDATE b SET balance = 11 WHERE id = 1")
    assert reached.wait(TIMEOUT_S)
    rig.cut("noon")
    rig.wait_cut("noon", CutPhase.PENDING)
    blocked.set()
    found = rig.wait_cut("noon")
    assert (found.phase, found.tagged, found.left_out) == (CutPhase.INCOMPLETE, 2, ("public.b: errored [made_up]",))
    rig.bank.before_apply = lambda table: None
    rig.say("b", retry_nonce=1)
    rig.wait_caught_up()
    rig.cut("evening")
    assert rig.wait_cut("evening").phase is CutPhase.COMPLETE


@pytest.mark.parametrize(
    "error", [DestinationChanged("foreign_write", "another writer", hint="x"), ValueError("a made-up bug")]
)
def test_a_tag_that_fails_is_left_out(rig: BankRig, db: Database, error: Exception) -> None:
    """A table that cannot be tagged is left out, and applies its changes as before."""

    def before_tag(cut: NamedCut | None) -> None:
        raise error

    rig.bank.before_tag = before_tag
    rig.cut("noon")
    found = rig.wait_cut("noon")
    assert (found.phase, found.tagged, len(found.left_out)) == (CutPhase.INCOMPLETE, 0, 3)
    db.execute("UPDATE b SET balance = 11 WHERE id = 1")
    rig.wait_caught_up()


def test_tags_of_a_table_that_is_copied_again(rig: BankRig) -> None:
    """A table that was copied into a new table lost its tags, which the list of cuts says. A swap keeps them."""
    rig.cut("noon")
    rig.wait_cut("noon")
    rig.say("a", resync_nonce=1)
    rig.wait(lambda p: p.ready and all(t.resync is None for t in p.tables))
    rig.wait_caught_up()
    assert rig.cuts()["noon"].phase is CutPhase.COMPLETE
    assert rig.total("noon") == TOTAL
    rig.place.cuts.pop(rig.oid("b"))
    rig.restart()
    found = rig.wait_cut("noon", CutPhase.INCOMPLETE)
    assert [why.split(":")[0] for why in found.left_out] == ["public.b"]
    assert rig.stored()["noon"].phase is CutPhase.INCOMPLETE


def test_a_swap_waits_for_the_tag(rig: BankRig, db: Database) -> None:
    """A shadow copy that is ahead of a pending cut is swapped in after the tag."""
    copying, go_on, tagging, tag = (threading.Event() for _ in range(4))
    rig.bank.before_copy = lambda: void((copying.set(), go_on.wait(TIMEOUT_S)))

    def before_tag(cut: NamedCut | None) -> None:
        if cut is not None:
            tagging.set()
            assert tag.wait(TIMEOUT_S)

    rig.bank.before_tag = before_tag
    rig.say("a", resync_nonce=1)
    assert copying.wait(TIMEOUT_S)
    rig.cut("noon")
    assert tagging.wait(TIMEOUT_S)
    with db.connect() as connection, connection.transaction():
        connection.execute("UPDATE a SET balance = 0 WHERE id = 1")
        connection.execute("UPDATE b SET balance = 20 WHERE id = 1")
    go_on.set()
    rig.wait(lambda p: any(t.resync is not None and t.resync.step == "CatchingUp" for t in p.tables))
    tag.set()
    assert rig.wait_cut("noon").phase is CutPhase.COMPLETE
    assert rig.total("noon") == TOTAL
    rig.wait(lambda p: all(t.resync is None for t in p.tables))
    rig.wait_caught_up()
    assert rig.place.tables[rig.oid("a")].rows[(1,)][2] == 0


def test_truncates_and_new_columns(rig: BankRig, db: Database) -> None:
    """A cut before a TRUNCATE and an ALTER TABLE has the rows and columns before them, one after them has the new."""
    rig.cut("before")
    rig.wait_cut("before")
    with db.connect() as connection, connection.transaction():
        connection.execute("TRUNCATE a, b")
        connection.execute("ALTER TABLE c ADD COLUMN note text")
        connection.execute("INSERT INTO a VALUES (1, 300)")
        connection.execute("UPDATE c SET balance = 0, note = 'x'")
    rig.cut("after")
    rig.wait_cut("after")
    assert rig.total("before") == rig.total("after") == TOTAL
    assert rig.rows("a", "after") == {1: 300}
    assert rig.rows("b", "after") == {}


def test_a_newer_engine_takes_a_cut_over(rig: BankRig, db: Database) -> None:
    """While two engines run, the older one completes no cut, and the newer one does."""
    older, blocked = rig.running, threading.Event()
    assert older is not None
    rig.bank.before_tag = lambda cut: void(blocked.wait(TIMEOUT_S))
    rig.cut("noon")
    rig.wait_cut("noon", CutPhase.PENDING)
    lsn = rig.cuts()["noon"].lsn
    rig.bank = Bank(rig.place)
    supervisor = older._supervisor
    assert supervisor is not None
    supervisor.stop()
    assert older._capture is not None
    older._capture.stop()
    rig.start()
    with db.connect() as connection, connection.transaction():
        connection.execute("UPDATE a SET balance = 0 WHERE id = 1")
        connection.execute("UPDATE b SET balance = 20 WHERE id = 1")
    found = rig.wait_cut("noon")
    blocked.set()
    with contextlib.suppress(LevadaError):
        older.wait(TIMEOUT_S)
    assert (found.phase, found.lsn, rig.total("noon")) == (CutPhase.COMPLETE, lsn, TOTAL)
    assert rig.stored()["noon"].phase is CutPhase.COMPLETE


def test_a_destination_without_cuts(rig: BankRig) -> None:
    """A schedule or a request for a destination that keeps no states is refused with a code."""

    class Plain(Bank):
        capabilities = Capabilities(upsert=True, watermark=True)

    rig.stop()
    rig.kind = Plain
    rig.restart()
    for request in (lambda: rig.cut("noon"), lambda: rig.change(cuts=CutSchedule(60, 2))):
        with pytest.raises(NeedsOperator) as caught:
            request()
        assert caught.value.code == "cuts_unsupported"
    rig.stop()
    with pytest.raises(NeedsOperator):
        rig.start()


def test_tables_come_and_go(rig: BankRig, db: Database) -> None:
    """A table that is no longer replicated makes earlier cuts incomplete. A new one is in later cuts only."""
    rig.cut("noon")
    rig.wait_cut("noon")
    rig.change(selects=Only("a", "b"))
    found = rig.wait_cut("noon", CutPhase.INCOMPLETE)
    assert found.left_out[0].endswith("no longer replicated")
    rig.cut("evening")
    assert (rig.wait_cut("evening").phase, rig.cuts()["evening"].tables) == (CutPhase.COMPLETE, 2)
    assert rig.running is not None
    for name in ("noon", "evening"):
        rig.running.drop_cut(name)
    rig.wait(lambda _: not rig.cuts())
    assert rig.tags("a") == rig.tags("b") == set()


def test_a_restarted_source_ends_a_cut(rig: BankRig, db: Database) -> None:
    """A table that has not reached a cut when the source is restarted is left out. Tagged tables keep their tags."""
    blocked, reached = threading.Event(), threading.Event()

    def before_apply(table: str) -> None:
        if table == "b":
            reached.set()
            assert blocked.wait(TIMEOUT_S)

    rig.bank.before_apply = before_apply
    db.execute("UPDATE b SET balance = 11 WHERE id = 1", "UPDATE c SET balance = 9 WHERE id = 1")
    assert reached.wait(TIMEOUT_S)
    rig.cut("noon")
    rig.wait(lambda _: rig.cuts()["noon"].tagged == 2)
    assert rig.running is not None
    recorded = threading.Event()
    # As after a restart of the engine on scratch staging, which has to stream again from an earlier position.
    rig.running._inbox.put(SourceRestarted(Lsn(1), recorded))
    assert recorded.wait(TIMEOUT_S)
    assert rig.stored()["noon"].phase is CutPhase.INCOMPLETE
    blocked.set()
    rig.wait(lambda p: not any(t.job for t in p.tables))
    assert (rig.tags("a"), rig.tags("b")) == ({"noon"}, set())
    [why] = rig.wait_cut("noon").left_out
    assert "the source was restarted" in why
