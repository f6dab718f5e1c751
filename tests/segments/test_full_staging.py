"""A segment that does not fit is written later. Its unfinished files are removed."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest
from tests.segments.changes import batch, changes, insert, table
from tests.servers.mounts import fill, small_file_system

from levada.errors import Transient
from levada.pgoutput.changes import TableChanges
from levada.runtime.resources.staging import start_makes_room
from levada.segments import Manifest, SegmentLog, Staging
from levada.values import Lsn

TABLE = table(1)


def stage(log: SegmentLog, rows: TableChanges) -> Manifest:
    """Write a segment as capture does, which gives up what failed."""
    writer = log.writer(1, Lsn(0))
    try:
        writer.add(batch(rows, end=16))
        return writer.commit(Lsn(16))
    finally:
        writer.abort()


@pytest.mark.parametrize("leaving", [0, 4 << 10, 64 << 10, 220 << 10])
def test_a_segment_without_room_leaves_nothing(tmp_path: Path, leaving: int) -> None:
    """Wherever the room ends, at the first byte, in the rows or in the manifest, and again and again."""
    rng = random.Random(1)
    rows = changes(TABLE, [insert(8, i, id=i, note=rng.randbytes(80).hex()) for i in range(3000)])
    folder = tmp_path / "staging"
    with small_file_system(folder, "2m"):
        log = SegmentLog(Staging.open(str(folder)), "shop")
        filler = fill(folder, leaving=leaving)
        for _ in range(3):
            with pytest.raises(Transient) as full:
                stage(log, rows)
            assert full.value.code == "staging_full"
            assert str(folder) in full.value.message
            assert [p for p in (folder / "shop").rglob("*") if p.is_file()] == []
        filler.unlink()
        manifest = stage(log, rows)
        assert log.list() == (manifest,)


def test_a_read_only_file_system_is_waited_for(tmp_path: Path) -> None:
    """A file system that turned read-only says so, and is tried again."""
    folder = tmp_path / "staging"
    with small_file_system(folder, "2m"):
        log = SegmentLog(Staging.open(str(folder)), "shop")
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        with pytest.raises(Transient) as refused:
            stage(log, changes(TABLE, [insert(8, 0, id=1)]))
        assert refused.value.code == "staging_read_only"


def test_a_start_that_makes_room_is_not_refused(tmp_path: Path) -> None:
    """Full of files of the pipeline it is emptied by a start. Full of others' files it stays full."""
    folder = tmp_path / "staging"
    with small_file_system(folder, "2m"):
        staging = Staging.open(str(folder))
        (folder / "shop").mkdir()
        fill(folder / "shop", leaving=0)
        with pytest.raises(Transient) as full:
            staging.probe()
        assert start_makes_room(full.value, staging, "shop")
        assert not start_makes_room(full.value, staging, "other")
        assert not start_makes_room(Transient("staging_unavailable", "away"), staging, "shop")
