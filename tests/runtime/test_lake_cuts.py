"""Cuts of all tables of a running pipeline: what is in them, and the requests for them."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

import pytest
from tests.rigs.database import Database
from tests.rigs.waiting import LIMIT_S, until
from tests.runtime.bank import TABLES, TOTAL, Bank, BankRig, EndingStore, TogetherBank, Transfers, create, rig

from levada.destinations import Capabilities
from levada.errors import NeedsOperator, Transient
from levada.runtime.config import CutSchedule
from levada.runtime.limits import CutLimits, Limits
from levada.status import CutPhase, Progress
from levada.stores import Cut

__all__ = ["rig"]


@pytest.mark.sampled
@pytest.mark.parametrize("kind", [Bank, TogetherBank])
def test_every_cut_is_consistent(db: Database, tmp_path: Path, kind: type[Bank]) -> None:
    """Under load, each scheduled cut has whole transactions only, also when tables are at different paces."""
    create(db)
    rig = BankRig(db, tmp_path, kind)
    slow = threading.Event()

    def before_apply(table: str) -> None:
        slow.wait(0.3 if table == "b" else 0)

    def complete() -> list[Cut]:
        return [c for c in rig.cuts().values() if c.phase is CutPhase.COMPLETE and c.scheduled]

    rig.bank.before_apply = before_apply
    rig.change(cuts=CutSchedule(every_s=0.2, keep=100))
    rig.start()
    rig.wait_caught_up()
    try:
        with Transfers(db) as transfers:
            rig.wait(lambda p: p.cuts.kept >= 8 and transfers.count > 200)
            # Cuts that are all of one moment would show nothing.
            until(lambda: len({str([rig.rows(table, c.name) for table in TABLES]) for c in complete()}) > 2)
        assert {rig.total(c.name) for c in complete()} == {TOTAL}
        lsns = [c.lsn for c in complete()]
        assert lsns == sorted(lsns, key=int)  # type: ignore[arg-type] # a complete cut has an LSN
    finally:
        rig.stop()


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
    gate = rig.hold_batches("b")
    db.execute("UPDATE b SET balance = 11 WHERE id = 1", "UPDATE c SET balance = 9 WHERE id = 1")
    gate.wait_reached()
    rig.cut("noon")
    rig.wait(lambda _: rig.cuts()["noon"].tagged == 2)
    for n in range(3):
        db.execute(f"UPDATE a SET balance = 100 + {n} WHERE id = 1", f"UPDATE b SET balance = 100 + {n} WHERE id = 1")
    rig.wait(lambda p: rig.place.tables[rig.oid("a")].rows[(1,)][2] == 102)
    assert rig.cuts()["noon"].phase is CutPhase.PENDING
    gate.opened.set()
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


def test_a_destination_without_cuts(rig: BankRig) -> None:
    """A schedule or a request for a destination that keeps no states is refused. Only a schedule is in the manifest."""

    class Plain(Bank):
        capabilities = Capabilities(upsert=True, watermark=True)

    rig.stop()
    rig.kind = Plain
    rig.restart()
    for of_manifest, request in ((False, lambda: rig.cut("noon")), (True, lambda: rig.change(cuts=CutSchedule(60, 2)))):
        with pytest.raises(NeedsOperator) as caught:
            request()
        assert caught.value.code == "cuts_unsupported"
        assert ("remove spec.cuts" in caught.value.hint) is of_manifest
    rig.stop()
    with pytest.raises(NeedsOperator):
        rig.start()


def test_a_pipeline_that_has_ended_makes_no_cut(rig: BankRig) -> None:
    """Nothing waits for an answer that no thread can give any more."""
    ended = rig.running
    assert ended is not None
    rig.stop()
    for request in (lambda: ended.request_cut("noon"), lambda: ended.drop_cut("noon")):
        with pytest.raises(Transient) as refused:
            request()
        assert refused.value.code == "engine_not_running"
        assert "has ended" in refused.value.message


def test_a_pipeline_that_does_not_answer(rig: BankRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that waits for a slow store is not lost, and the error says so. The cut is made later."""
    rig.change(limits=Limits(cuts=CutLimits(answer_s=0.5)))
    store_cut, busy, proceed = EndingStore.store_cut, threading.Event(), threading.Event()

    def slowly(store: EndingStore, cut: Cut) -> None:
        busy.set()
        assert proceed.wait(LIMIT_S)
        store_cut(store, cut)

    monkeypatch.setattr(EndingStore, "store_cut", slowly)
    with suppress(Transient):  # its answer may be late, too
        rig.cut("noon")
    assert busy.wait(LIMIT_S)
    with pytest.raises(Transient) as refused:
        rig.cut("later")
    proceed.set()
    assert refused.value.code == "engine_unreachable"
    assert "did not answer in 0.5 s, and may still do it" in refused.value.message
    rig.wait_cut("later")
