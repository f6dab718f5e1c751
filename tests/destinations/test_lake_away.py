"""A lake that cannot be written for a moment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.destinations.orders import ORDERS, apply, copy
from tests.rigs.lake import Lake
from tests.servers.mounts import covered, read_only, small_file_system

from levada.errors import AccessDenied, DestinationChanged, Transient
from levada.schema import Kind
from levada.testing import column


@pytest.mark.nightly
def test_a_read_only_lake_is_waited_for(hadoop: Lake, tmp_path: Path) -> None:
    """Rows, a new column and a copy are refused as those of a lake that is away, and go on afterwards."""
    warehouse = tmp_path / "mounted"
    hadoop.manifest["catalog"]["warehouse"] = str(warehouse)
    with small_file_system(warehouse, "40m"):
        destination = hadoop.destination()
        stream = copy(hadoop, destination)
        with read_only(warehouse):
            stream.insert(id=50, item="x", note=None)
            for change in range(3):
                if change == 1:
                    added = column(4, "n", Kind.INT4, missing_value="1")
                    stream.alter(replace(ORDERS, columns=(*ORDERS.columns, added)))
                with pytest.raises(Transient) as away:
                    copy(hadoop, destination) if change == 2 else apply(hadoop, destination, stream)
                assert away.value.code == "destination_unavailable"
                assert "Read-only file system" in away.value.message
        # The batches that failed are read again.
        stream.taken = 1000
        apply(hadoop, destination, stream)
        assert {r["id"]: r["n"] for r in hadoop.rows()} == {1: 1, 2: 1, 3: 1, 50: 1}


@pytest.mark.nightly
def test_a_lake_that_is_not_mounted_is_waited_for(hadoop: Lake, tmp_path: Path) -> None:
    """The empty folder below it is no lake whose tables are gone. A table that another session drops is."""
    warehouse = tmp_path / "mounted"
    hadoop.manifest["catalog"]["warehouse"] = str(warehouse)
    with small_file_system(warehouse, "40m"):
        destination = hadoop.destination()
        stream = copy(hadoop, destination)
        stream.insert(id=50, item="x", note=None)
        with covered(warehouse):
            for call in (lambda: apply(hadoop, destination, stream), lambda: copy(hadoop, destination)):
                with pytest.raises(Transient) as away:
                    call()
                assert away.value.code == "destination_unavailable"
        stream.taken = 1000
        apply(hadoop, destination, stream)
        assert len(hadoop.rows()) == 4
        hadoop.sql("DROP TABLE {t}")
        stream.insert(id=51, item="x", note=None)
        with pytest.raises(DestinationChanged) as gone:
            apply(hadoop, destination, stream)
        assert gone.value.code == "destination_table_missing"


@contextmanager
def closed(folder: Path) -> Iterator[None]:
    """Take away all permissions of a folder during the block."""
    mode = folder.stat().st_mode
    folder.chmod(0)
    try:
        if os.access(folder, os.X_OK):
            pytest.skip("this process may read every folder")
        yield
    finally:
        folder.chmod(mode)


@pytest.mark.nightly
@pytest.mark.parametrize("fresh", [False, True], ids=["the same process", "a new process"])
@pytest.mark.parametrize("below", ["", "metadata", "data"])
def test_a_folder_without_permission_is_waited_for(hadoop: Lake, below: str, *, fresh: bool) -> None:
    """Its table is neither missing nor damaged, and goes on once the folder may be read and written again."""
    destination = hadoop.destination()
    stream = copy(hadoop, destination)
    folder = Path(hadoop.manifest["catalog"]["warehouse"].removeprefix("file:")) / "shop_public" / "orders" / below
    if fresh:
        destination = hadoop.destination()
    with closed(folder):
        if below != "data":
            with pytest.raises(AccessDenied) as unread:
                destination.applied(ORDERS.id)
            assert unread.value.code == "destination_denied"
        stream.insert(id=50, item="x", note=None)
        with pytest.raises(AccessDenied) as denied:
            apply(hadoop, destination, stream)
        assert denied.value.code == "destination_denied"
    stream.taken = 1000
    apply(hadoop, destination, stream)
    assert len(hadoop.rows()) == 4
