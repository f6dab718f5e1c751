"""Cuts of tables that fail, are copied again, come and go, and of engines and sources that end meanwhile."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime

import pytest
from tests.rigs.database import Database
from tests.rigs.pipeline import Only
from tests.rigs.waiting import LIMIT_S
from tests.runtime.bank import TABLES, TOTAL, Bank, BankRig, Gate, rig

from levada.destinations import NamedCut
from levada.errors import DestinationChanged, LevadaError, NeedsOperator, Permanent
from levada.runtime.limits import CutLimits, Limits
from levada.runtime.stages import lake_cuts
from levada.runtime.stages.messages import SourceRestarted
from levada.runtime.tables.record import TableRecord
from levada.status import CutPhase
from levada.stores import Cut
from levada.values import Lsn, QualifiedTable, Watermark

__all__ = ["rig"]


@pytest.mark.sampled
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
        rig.running.wait(LIMIT_S)
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
    gate = Gate()

    def before_apply(table: str) -> None:
        if table == "b":
            gate.pass_through()
            raise NeedsOperator("made_up", "a made-up failure", hint="do nothing")

    rig.bank.before_apply = before_apply
    db.execute("UPDATE b SET balance = 11 WHERE id = 1")
    gate.wait_reached()
    rig.cut("noon")
    rig.wait_cut("noon", CutPhase.PENDING)
    gate.opened.set()
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
    copy, tag = Gate(), Gate()
    rig.bank.before_copy = copy.pass_through
    rig.bank.before_tag = lambda cut: tag.pass_through() if cut is not None else None
    rig.say("a", resync_nonce=1)
    copy.wait_reached()
    rig.cut("noon")
    tag.wait_reached()
    with db.connect() as connection, connection.transaction():
        connection.execute("UPDATE a SET balance = 0 WHERE id = 1")
        connection.execute("UPDATE b SET balance = 20 WHERE id = 1")
    copy.opened.set()
    rig.wait(lambda p: any(t.resync is not None and t.resync.step == "CatchingUp" for t in p.tables))
    tag.opened.set()
    assert rig.wait_cut("noon").phase is CutPhase.COMPLETE
    assert rig.total("noon") == TOTAL
    rig.wait(lambda p: all(t.resync is None for t in p.tables))
    rig.wait_caught_up()
    assert rig.place.tables[rig.oid("a")].rows[(1,)][2] == 0


def test_a_newer_engine_takes_a_cut_over(rig: BankRig, db: Database) -> None:
    """While two engines run, the older one completes no cut, and the newer one does."""
    older, gate = rig.running, Gate()
    assert older is not None
    rig.bank.before_tag = lambda cut: gate.pass_through()
    rig.cut("noon")
    rig.wait_cut("noon", CutPhase.PENDING)
    lsn = rig.cuts()["noon"].lsn
    rig.bank = Bank(rig.place)
    assert older._replication is not None
    older._replication.supervisor.stop()
    older._replication.capture.stop()
    rig.start()
    with db.connect() as connection, connection.transaction():
        connection.execute("UPDATE a SET balance = 0 WHERE id = 1")
        connection.execute("UPDATE b SET balance = 20 WHERE id = 1")
    found = rig.wait_cut("noon")
    gate.opened.set()
    with contextlib.suppress(LevadaError):
        older.wait(LIMIT_S)
    assert (found.phase, found.lsn, rig.total("noon")) == (CutPhase.COMPLETE, lsn, TOTAL)
    assert rig.stored()["noon"].phase is CutPhase.COMPLETE


@pytest.mark.sampled
@pytest.mark.parametrize("how", ["running", "stopped", "dropped"])
def test_tables_come_and_go(rig: BankRig, db: Database, how: str) -> None:
    """A table that is no longer replicated is named by earlier cuts, which lack it. A new one is in later cuts only."""
    rig.cut("noon")
    rig.wait_cut("noon")
    if how == "stopped":
        rig.stop()
    if how == "dropped":
        db.execute("DROP TABLE c")
        rig.change(selects=Only(*TABLES, "later"))
    else:
        rig.change(selects=Only("a", "b"))
    if how == "stopped":
        rig.restart()
    found = rig.wait_cut("noon", CutPhase.INCOMPLETE)
    assert found.left_out == ("public.c: no longer replicated",)
    rig.cut("evening")
    assert (rig.wait_cut("evening").phase, rig.cuts()["evening"].tables) == (CutPhase.COMPLETE, 2)
    assert rig.running is not None
    for name in ("noon", "evening"):
        rig.running.drop_cut(name)
    rig.wait(lambda _: not rig.cuts())
    assert rig.tags("a") == rig.tags("b") == set()


def test_a_restarted_source_ends_a_cut(rig: BankRig, db: Database) -> None:
    """A table that has not reached a cut when the source is restarted is left out. Tagged tables keep their tags."""
    gate = rig.hold_batches("b")
    db.execute("UPDATE b SET balance = 11 WHERE id = 1", "UPDATE c SET balance = 9 WHERE id = 1")
    gate.wait_reached()
    rig.cut("noon")
    rig.wait(lambda _: rig.cuts()["noon"].tagged == 2)
    assert rig.running is not None
    # As after a restart of the engine on scratch staging, which has to stream again from an earlier position.
    rig.running._inbox.ask(SourceRestarted(Lsn(1))).answer.result(LIMIT_S)
    assert rig.stored()["noon"].phase is CutPhase.INCOMPLETE
    gate.opened.set()
    rig.wait(lambda p: not any(t.job for t in p.tables))
    assert (rig.tags("a"), rig.tags("b")) == ({"noon"}, set())
    [why] = rig.wait_cut("noon").left_out
    assert "the source was restarted" in why


def test_a_tag_that_another_hand_removes(rig: BankRig) -> None:
    """A complete cut whose tag is gone becomes incomplete without a restart, a copy or another cut."""
    rig.change(limits=Limits(cuts=CutLimits(check_every_s=0.2)))
    rig.restart()
    rig.cut("noon")
    rig.wait_cut("noon", CutPhase.COMPLETE)
    rig.place.cuts.pop(rig.oid("b"))
    [why] = rig.wait_cut("noon", CutPhase.INCOMPLETE).left_out
    assert why.startswith("public.b: its tag is gone")


def test_a_store_without_room(rig: BankRig) -> None:
    """The list of cuts is true while the store has no room for a change, which is stored as soon as there is room."""
    rig.change(limits=Limits(cuts=CutLimits(check_every_s=0.2, retry_s=0.2)))
    rig.restart()
    rig.full_at = CutPhase.COMPLETE
    rig.cut("noon")
    rig.wait_cut("noon", CutPhase.COMPLETE)
    assert rig.stored()["noon"].phase is CutPhase.PENDING
    rig.full_at = None
    rig.wait(lambda _: rig.stored()["noon"].phase is CutPhase.COMPLETE)
    rig.full_at = CutPhase.INCOMPLETE
    rig.place.cuts.pop(rig.oid("b"))
    rig.wait_cut("noon", CutPhase.INCOMPLETE)
    assert rig.stored()["noon"].phase is CutPhase.COMPLETE
    rig.full_at = CutPhase.DROPPING
    assert rig.running is not None
    rig.running.drop_cut("noon")
    rig.wait(lambda _: not rig.cuts())
    assert not rig.stored()
    assert not rig.tags("a")
    rig.full_at = CutPhase.PENDING
    rig.cut("evening")
    rig.full_at = None
    rig.cut("later")
    rig.wait_cut("later", CutPhase.COMPLETE)


def test_a_tick_visits_what_changed(rig: BankRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables that have the tags of all cuts are not visited, however many cuts there are."""
    visited: list[QualifiedTable] = []
    plain = lake_cuts.reason_left_out

    def counted(record: TableRecord) -> str:
        visited.append(record.name)
        return plain(record)

    monkeypatch.setattr(lake_cuts, "reason_left_out", counted)
    for name in ("noon", "evening"):
        rig.cut(name)
        rig.wait_cut(name)
    assert visited
    rig.wait(lambda p: not any(t.job for t in p.tables))
    before = len(visited)
    rig.db.execute("UPDATE a SET balance = 0")
    rig.wait_caught_up()
    # Those that a cut waited for are visited once more.
    assert len(visited) <= before + 3


def test_scheduled_cuts_that_the_store_does_not_know(rig: BankRig) -> None:
    """Tags of scheduled cuts that a restored store has never seen are removed. Later ones may be a newer engine's."""
    for year in (2020, 2999):
        stray = NamedCut(f"levada_cut_{year}0101T000000Z", Lsn(1 << 40))
        rig.bank.update_cuts(rig.oid("b"), stray, (), Watermark("shop", 1, Lsn(0)))
    rig.cut("noon")
    rig.wait_cut("noon", CutPhase.COMPLETE)
    rig.wait(lambda _: rig.tags("b") == {"noon", "levada_cut_29990101T000000Z"})
    assert rig.tags("a") == {"noon"}
