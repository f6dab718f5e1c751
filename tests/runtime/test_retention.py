"""Staged segments and schema versions are removed when nothing needs them any more."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.rigs.segments import segment

from levada.apply.backlog import Backlog
from levada.capture.history import Witnessed
from levada.capture.position import CapturePosition
from levada.postgres.server import ServerIdentity
from levada.runtime.source.record import SourceRecord
from levada.runtime.stages.retention import Retention, outdated_versions
from levada.runtime.tables.record import TableRecord
from levada.runtime.tables.resync_state import ResyncState
from levada.runtime.tables.resync_steps import Step
from levada.segments.log import SegmentLog
from levada.segments.staging import Staging
from levada.stores import MemoryStore
from levada.stores.phases import DataSync, FinishedCopy, Ready, TableReplicationPhase
from levada.testing.store_samples import schema
from levada.values import Lsn, QualifiedTable, SnapshotId, TableId, Witness


def test_what_cannot_be_removed_is_removed_later(tmp_path: Path) -> None:
    """The slot is acknowledged although a removal fails. The next turn removes the rest."""
    # Of the registry this needs three fields.
    registry: Any = SimpleNamespace(backlog=Backlog(), staged_lsn=Lsn(40), tables={})
    manifests = [segment(start, start + 10, {1: 5}) for start in (10, 20, 30)]
    for manifest in manifests:
        registry.backlog.add_segment(manifest)
    folder = tmp_path / "p"
    # A folder in the place of the file. No file system removes it as a file, for any user.
    (folder / f"{manifests[1].name}.json").mkdir(parents=True)
    for manifest in (manifests[0], manifests[2]):
        (folder / f"{manifest.name}.json").write_text("{}")
    released: list[Lsn] = []
    store = MemoryStore("p")
    store.next_epoch()
    retention = Retention(
        registry, SegmentLog(Staging.open(str(tmp_path)), "p"), store, SourceRecord(store), released.append
    )
    retention.remove(100, CapturePosition())
    assert {f.name for f in folder.iterdir()} == {f"{m.name}.json" for m in manifests[1:]}
    assert released == [40]
    (folder / f"{manifests[1].name}.json").rmdir()
    retention.remove(101, CapturePosition())
    assert len(list(folder.iterdir())) == 1
    retention.remove(102, CapturePosition())
    assert list(folder.iterdir()) == []


LAST, LATER = Witness(Lsn(15), 7, 0), Witness(Lsn(66), 8, 0)


def record(table: int, phase: TableReplicationPhase, step: Step = Step.NO_COPY) -> TableRecord:
    """Return a table in a phase."""
    return TableRecord(TableId(table), QualifiedTable("public", f"t{table}"), phase, resync=ResyncState(step))


def versions_after(
    folder: Path, remembered: int, *, durable: bool = True, resent: int | None = None
) -> dict[int, list[int]]:
    """Return the versions of six tables that one turn leaves, if a restart streams from ``remembered`` on.

    On scratch staging the slot sends nothing below ``resent`` again.
    """
    store = MemoryStore("p")
    store.next_epoch()
    backlog = Backlog()
    records = [
        record(1, Ready()),
        record(2, FinishedCopy(Lsn(50))),
        record(3, Ready()),
        record(4, DataSync()),
        record(5, Ready(), Step.WAITING),
        record(6, Ready()),
    ]
    for each in records:
        backlog.track(each.id, None if each.id == 6 else Lsn(90 if each.id == 1 else 50))
        for version in (0, 10, 40, 70):
            store.store_table_schema(schema(version, each.id))
    backlog.add_segment(segment(80, 90, {3: 1}))
    registry: Any = SimpleNamespace(backlog=backlog, staged_lsn=Lsn(90), tables={r.id: r for r in records})
    source = SourceRecord(store)
    source.save_position(Lsn(remembered), None)
    log = SegmentLog(Staging.open(str(folder), durable=durable), "p")
    resends_from = None if resent is None else Lsn(resent)
    retention = Retention(registry, log, store, source, lambda lsn: None, resends_from=lambda: resends_from)
    retention.remove(100, CapturePosition())
    left: dict[int, list[int]] = {}
    for kept in store.get_table_schemas():
        left.setdefault(kept.id, []).append(kept.snapshot_id)
    return left


def test_schema_versions_below_what_every_table_has_applied_are_removed(tmp_path: Path) -> None:
    """The version at the applied position stays, and so does every version of a table that is copied or unknown."""
    everything = [0, 10, 40, 70]
    assert versions_after(tmp_path, remembered=90) == {
        1: [70],
        2: [40, 70],
        3: [40, 70],
        4: everything,
        5: everything,
        6: everything,
    }


def test_schema_versions_stay_that_a_restart_would_stream_again(tmp_path: Path) -> None:
    """A version is needed from where the next session of the stream may begin, also if the table is further."""
    assert versions_after(tmp_path, remembered=41)[1] == [40, 70]
    assert versions_after(tmp_path, remembered=40)[1] == [10, 40, 70]
    assert versions_after(tmp_path, remembered=0)[1] == [0, 10, 40, 70]


def test_schema_versions_on_scratch_staging_stay_that_the_slot_may_send_again(tmp_path: Path) -> None:
    """The slot decides, by what it may send again after a crash. If that is unknown, all stay."""
    assert versions_after(tmp_path, remembered=90, durable=False)[1] == [0, 10, 40, 70]
    scratch = [versions_after(tmp_path, remembered=90, durable=False, resent=at) for at in (10, 41, 90)]
    assert [left[1] for left in scratch] == [[0, 10, 40, 70], [40, 70], [70]]
    assert scratch[-1][2] == [40, 70]


@pytest.mark.parametrize(
    ("position", "released"),
    [
        # A transaction of this session, which may have changed no replicated table.
        (CapturePosition(staged_lsn=Lsn(70), witness=LATER, since=Lsn(60)), Witnessed(Lsn(70), LATER)),
        # None since a session that began at the end of the segment, or before.
        (CapturePosition(staged_lsn=Lsn(70), since=Lsn(20)), Witnessed(Lsn(70), LAST)),
        # The changes between 20 and 21 were not read.
        (CapturePosition(staged_lsn=Lsn(70), since=Lsn(21)), Witnessed(Lsn(20), LAST)),
        # A table has not applied everything yet.
        (CapturePosition(staged_lsn=Lsn(91), witness=LATER, since=Lsn(60)), Witnessed(Lsn(20), LAST)),
        # A new capture does not know a position yet.
        (CapturePosition(), Witnessed(Lsn(20), LAST)),
    ],
)
def test_on_scratch_staging_the_last_transaction_is_kept(
    tmp_path: Path, position: CapturePosition, released: Witnessed
) -> None:
    """The last transaction read is evidence of the source's history, as far as every table has applied it."""
    store = MemoryStore("p")
    store.next_epoch()
    registry: Any = SimpleNamespace(backlog=Backlog(), staged_lsn=Lsn(90), tables={})
    source = SourceRecord(store)
    source.begin(ServerIdentity("1", 1, 1, "2026-01-01"), Lsn(5))
    assert source.state.released == Witnessed(Lsn(5), None)
    registry.backlog.add_segment(replace(segment(10, 20, {1: 5}), last=LAST))
    log = SegmentLog(Staging.open(str(tmp_path), durable=False), "p")
    Retention(registry, log, store, source, lambda lsn: None).remove(100, position)
    assert SourceRecord(store).state.released == released


@given(st.sets(st.integers(0, 30), min_size=1), st.integers(0, 32), st.integers(0, 8))
def test_what_is_looked_up_from_the_applied_position_on_stays_the_same(
    versions: set[int], reached: int, further: int
) -> None:
    """A transaction that commits at the position or after it finds the version that it found before the removal."""
    store, table = MemoryStore("p"), TableId(1)
    for version in versions:
        store.store_table_schema(schema(version, table))
    before = [store.get_table_schema(table, SnapshotId(max(0, at - 1))) for at in range(reached, reached + further + 1)]
    retentions = outdated_versions(store.get_table_schemas(), {table: Lsn(reached)})
    assert (store.prune_table_schemas(retentions) > 0) == bool(retentions)
    after = [store.get_table_schema(table, SnapshotId(max(0, at - 1))) for at in range(reached, reached + further + 1)]
    assert after == before
