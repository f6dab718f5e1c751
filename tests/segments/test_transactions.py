"""Each transaction of a batch is between its Begin and its Commit, with the values of its segment."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.segments.changes import batch, changes, column, insert, table

from levada.errors import NeedsOperator, Transient
from levada.events import Begin, Commit, Event, RelationEvent
from levada.pgoutput.changes import RelationChange, Truncate
from levada.schema import Kind, ReplicatedTableSchema, TableTarget
from levada.segments import Manifest, SegmentLog, StagedBatch, Staging, TableStart
from levada.segments.limits import FileLimits
from levada.values import Lsn, QualifiedTable, TableId

ID = column(1, "id", Kind.INT8)
ONE, TWO = table(1, ID), table(2, ID)
NAMES = (QualifiedTable("public", "t1"), QualifiedTable("public", "t2"))


@pytest.fixture(params=["inline", "file"])
def place(request: pytest.FixtureRequest) -> str:
    """Keep the transactions in the manifest, or in a file with many small row groups."""
    return str(request.param)


@pytest.fixture
def staging(place: str, tmp_path: Path) -> Staging:
    """A staging area in which they are there."""
    few = FileLimits(inline_bytes=0, transaction_rows=7)
    return replace(Staging.open(str(tmp_path)), limits=few if place == "file" else FileLimits())


def stage(staging: Staging, *, segments: int = 1, size: int = 30) -> SegmentLog:
    """Stage segments of so many transactions, each of which changes one table or both."""
    log = SegmentLog(staging, "shop")
    for n in range(segments):
        lsns = [1000 * n + 10 * k for k in range(1, size + 1)]
        one = changes(ONE, [insert(lsn, 0, id=lsn) for lsn in lsns if lsn % 3])
        two = changes(TWO, [insert(lsn, 1, id=lsn) for lsn in lsns if lsn % 20 == 0])
        writer = log.writer(1, Lsn(1000 * n))
        writer.add(batch(one, two, end=1000 * n + 999, transactions=size))
        writer.commit(Lsn(1000 * n + 999))
    return log


def events(
    log: SegmentLog,
    *tables: ReplicatedTableSchema,
    after: int = 0,
    until: int = 1 << 40,
    manifests: Sequence[Manifest] | None = None,
) -> list[Event]:
    """Return the events of a batch of these tables."""
    starts = [TableStart(TableTarget.of(t), Lsn(after)) for t in tables]
    return list(StagedBatch(log.staging, log.list() if manifests is None else manifests, starts, Lsn(until)))


def transactions_of(shown: Sequence[Event]) -> list[list[Event]]:
    """Return the events by transaction. Each is whole, begins once and ends once."""
    split: list[list[Event]] = []
    for event in shown:
        if isinstance(event, Begin):
            split.append([])
        split[-1].append(event)
    for first, *inner, last in split:
        assert isinstance(first, Begin)
        assert isinstance(last, Commit)
        assert inner
        assert not any(isinstance(e, Begin | Commit) for e in inner)
        assert {e.commit_lsn for e in inner} == {first.commit_lsn} == {last.commit_lsn}
        assert (first.start_lsn, first.xid, first.commit_ts_us) == (last.start_lsn, last.xid, last.commit_ts_us)
    return split


def test_a_table_sees_the_transactions_that_changed_it(staging: Staging) -> None:
    """One table has the transactions with its changes, several tables have those of each, with the same values."""
    log = stage(staging, segments=3)
    lsns = [1000 * n + 10 * k for n in range(3) for k in range(1, 31)]
    of_one, of_two, of_both = (transactions_of(events(log, *t)) for t in ([ONE], [TWO], [ONE, TWO]))
    assert [t[0].commit_lsn for t in of_one] == [lsn for lsn in lsns if lsn % 3]
    assert [t[0].commit_lsn for t in of_two] == [lsn for lsn in lsns if lsn % 20 == 0]
    assert [t[0].commit_lsn for t in of_both] == [lsn for lsn in lsns if lsn % 3 or lsn % 20 == 0]
    bounds = {t[0].commit_lsn: (t[0], t[-1]) for t in of_both}
    assert all(bounds[t[0].commit_lsn] == (t[0], t[-1]) for t in [*of_one, *of_two])
    for begin, commit in bounds.values():
        lsn = int(begin.commit_lsn)
        assert begin == Begin(Lsn(lsn), 0, Lsn(lsn - 5), lsn, lsn)
        changed = 2 if lsn % 20 == 0 else 1
        assert commit == Commit(Lsn(lsn), changed, Lsn(lsn - 5), Lsn(lsn + 3), lsn, lsn)


def test_a_batch_that_begins_or_ends_within_a_segment(staging: Staging) -> None:
    """``after`` is inclusive and ``until`` exclusive, at every transaction of a segment."""
    log = stage(staging)
    whole = transactions_of(events(log, ONE, TWO))
    for cut in range(0, 320, 5):
        first, second = events(log, ONE, TWO, until=cut), events(log, ONE, TWO, after=cut)
        assert transactions_of(first) + transactions_of(second) == whole


def test_schema_changes_and_truncates_are_inside(staging: Staging) -> None:
    """A transaction without rows is shown as well. A schema change outside of a transaction has no bounds."""
    log = SegmentLog(staging, "shop")
    newer = [table(1, ID, column(2, "x"), at=at) for at in (10, 15)]
    writer = log.writer(1, Lsn(0))
    writer.add(batch(RelationChange(Lsn(10), 0, newer[0]), end=13))
    outside = batch(RelationChange(Lsn(15), 0, newer[1]))
    writer.add(replace(outside, committed=outside.committed.slice(0, 0)))
    writer.add(batch(Truncate(Lsn(20), 0, (TableId(1), TableId(2)), True, False, 20, 20, NAMES), end=23))
    writer.commit(Lsn(23))
    shown = events(log, ONE, TWO)
    assert [(type(e).__name__, e.commit_lsn, e.ordinal) for e in shown] == [
        ("Begin", 10, 0), ("RelationEvent", 10, 0), ("Commit", 10, 0),
        ("RelationEvent", 15, 0),
        ("Begin", 20, 0), ("TruncateEvent", 20, 0), ("Commit", 20, 1),
    ]  # fmt: skip
    assert isinstance(shown[3], RelationEvent)


def test_damage_is_noticed(tmp_path: Path, staging: Staging, place: str) -> None:
    """One wrong bit in the transactions is reported and never read, and a lost file asks for a resync."""
    log = stage(staging)
    manifests = log.list()
    path = tmp_path / (manifests[0].committed.path or f"shop/{manifests[0].name}.json")
    whole = path.read_bytes()
    for bit in random.Random(1).sample(range(8 * len(whole)), 200):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        if place == "inline":
            assert log.list() == ()
            continue
        with pytest.raises(NeedsOperator) as noticed:
            events(log, ONE)
        assert (noticed.value.code, noticed.value.hint) == ("segment_damaged", "levada resync MANIFEST public.t1")
    if place == "file":
        path.unlink()
        with pytest.raises(NeedsOperator) as noticed:
            events(log, ONE)
        assert noticed.value.code == "staging_file_missing"
        assert "25 transactions of public.t1" in noticed.value.message


def test_the_transactions_stay_until_the_segment_goes(tmp_path: Path, staging: Staging, place: str) -> None:
    """Garbage collection leaves the transactions, and they are removed with the segment."""
    log = stage(staging)
    (manifest,) = log.list()
    assert len(manifest.paths) == (2 if place == "file" else 1)
    assert log.collect_garbage() == 0
    assert len(transactions_of(events(log, TWO))) == 15
    log.remove(manifest)
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_an_aborted_segment_leaves_no_transactions(
    tmp_path: Path, staging: Staging, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the manifest cannot be written, the transactions are removed with the rows."""

    def fail(*args: object, **more: object) -> None:
        raise Transient("made_up", "no manifest")

    log = SegmentLog(staging, "shop")
    monkeypatch.setattr(Staging, "publish", fail)
    writer = log.writer(1, Lsn(0))
    writer.add(batch(changes(ONE, [insert(8, 0, id=1)]), end=16))
    with pytest.raises(Transient):
        writer.commit(Lsn(16))
    writer.abort()
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_a_forged_path_is_refused(tmp_path: Path, staging: Staging) -> None:
    """A manifest whose transactions are outside of the pipeline's folder is not read."""
    log = stage(staging)
    (manifest,) = log.list()
    forged = replace(manifest, committed=replace(manifest.committed, path="shop/../../precious"))
    (tmp_path / "shop" / f"{manifest.name}.json").write_bytes(forged.dumps())
    with pytest.raises(NeedsOperator) as refused:
        log.list()
    assert refused.value.code == "manifest_unreadable"
