"""A data path whose file system is away for a while."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.destinations.ducklake.steps import ORDERS, apply, copy
from tests.servers.ducklake import DuckLake

from levada.errors import Transient
from levada.schema import TableTarget
from levada.values import TableMode


@pytest.mark.parametrize("mode", list(TableMode))
@pytest.mark.parametrize("restarted", [False, True])
def test_nothing_is_written_where_the_files_are_missing(ducklake: DuckLake, mode: TableMode, restarted: bool) -> None:
    """A batch waits for the table's folder, also after a restart. Else its file would be lost with the mount point."""
    destination = ducklake.destination()
    stream = copy(ducklake, destination, mode=mode)
    (folder,) = {path.parent.parent for path in ducklake.folder.rglob("*.parquet")}
    away = Path(f"{ducklake.folder}-away")
    ducklake.folder.rename(away)
    ducklake.folder.mkdir()
    stream.insert(id=50, item="x", note=None)
    batch = stream.batch()
    if restarted:
        destination = ducklake.destination()
    with pytest.raises(Transient) as refused:
        destination.write_events(batch, ducklake.mark(batch.until))
    assert refused.value.code == "destination_unavailable"
    assert str(folder) in refused.value.message
    assert not any(ducklake.folder.iterdir())
    ducklake.folder.rmdir()
    away.rename(ducklake.folder)
    destination.write_events(batch, ducklake.mark(batch.until))
    assert ducklake.items()[50] == "x"


def test_a_table_whose_files_are_gone_for_good_is_copied_again(ducklake: DuckLake) -> None:
    """The hint's command works without the folder, and batches go on."""
    destination = ducklake.destination()
    copy(ducklake, destination)
    (folder,) = {path.parent for path in ducklake.folder.rglob("*.parquet")}
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    destination.drop_table_for_copy(TableTarget.of(ORDERS, TableMode.UPSERT))
    stream = copy(ducklake, destination, lsn=2000)
    stream.insert(id=50, item="x", note=None)
    apply(ducklake, destination, stream)
    assert set(ducklake.items()) == {1, 2, 3, 50}
