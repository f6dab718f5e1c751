"""Staged segments go when nobody needs them, and what keeps one from going keeps nothing else."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.unit.test_backlog import segment

from levada.apply.backlog import Backlog
from levada.runtime.source.record import SourceRecord
from levada.runtime.stages.retention import Retention
from levada.segments.log import SegmentLog
from levada.segments.staging import Staging
from levada.stores import MemoryStore
from levada.values import Lsn


def test_what_cannot_be_removed_is_removed_later(tmp_path: Path) -> None:
    """The slot is told what was applied all the same; the next turn removes what is left."""
    # Of the roster this needs two fields.
    roster: Any = SimpleNamespace(backlog=Backlog(), staged_lsn=Lsn(40))
    manifests = [segment(start, start + 10, {1: 5}) for start in (10, 20, 30)]
    for manifest in manifests:
        roster.backlog.land(manifest)
    folder = tmp_path / "p"
    # A folder in the place of the file: no file system removes it as one, whoever asks.
    (folder / f"{manifests[1].name}.json").mkdir(parents=True)
    for manifest in (manifests[0], manifests[2]):
        (folder / f"{manifest.name}.json").write_text("{}")
    released: list[Lsn] = []
    store = MemoryStore("p")
    store.next_epoch()
    retention = Retention(roster, SegmentLog(Staging.open(str(tmp_path)), "p"), SourceRecord(store), released.append)
    retention.remove(100)
    assert {f.name for f in folder.iterdir()} == {f"{m.name}.json" for m in manifests[1:]}
    assert released == [40]
    (folder / f"{manifests[1].name}.json").rmdir()
    retention.remove(101)
    assert len(list(folder.iterdir())) == 1
    retention.remove(102)
    assert list(folder.iterdir()) == []
