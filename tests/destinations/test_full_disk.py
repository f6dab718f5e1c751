"""Without room a write is tried again later, says where, and leaves nothing half-written behind."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.servers.mounts import fill, read_only, small_file_system

from levada.destinations.data_files.data_writer import DataWriter
from levada.destinations.data_files.position_deletes import write_position_deletes
from levada.destinations.iceberg.storage import POSITION_DELETES, IcebergStorage
from levada.destinations.key_index.index import KeyIndex, index_errors
from levada.destinations.keys import KeyKind, Keys
from levada.errors import Transient

FIELD = pa.field("v", pa.int64(), metadata={"PARQUET:field_id": "1"})


def test_a_full_lake_is_waited_for(tmp_path: Path) -> None:
    """A data file and a file of deletes that do not fit are removed, and the place is named."""
    lake = tmp_path / "lake"
    rows = pa.table([np.random.default_rng(1).integers(0, 2**60, 300_000)], schema=pa.schema([FIELD]))
    with small_file_system(lake, "1m"):
        storage = IcebergStorage(f"file://{lake}/", {})
        with pytest.raises(Transient) as full, DataWriter(storage, rows.schema) as writer:
            writer.write(rows)
        assert full.value.code == "destination_full"
        assert str(lake) in full.value.message
        assert list(lake.iterdir()) == []
        filler = fill(lake, leaving=0)
        with pytest.raises(Transient) as full:
            write_position_deletes(storage, POSITION_DELETES, ["x"], np.zeros(9, np.int64), np.arange(9))
        assert full.value.code == "destination_full"
        assert list(lake.iterdir()) == [filler]


@pytest.mark.parametrize("count", [9, 120_000])
def test_a_full_lake_at_each_size_of_a_batch(tmp_path: Path, count: int) -> None:
    """Parquet's writer fails at its end, or amid a page. Its second end then raises an error of its own."""
    lake = tmp_path / "lake"
    text = pa.field("t", pa.string(), metadata={"PARQUET:field_id": "2"})
    texts = [hashlib.md5(str(i).encode()).hexdigest() * 2 for i in range(count)]
    rows = pa.table([range(count), texts], schema=pa.schema([FIELD, text]))
    with small_file_system(lake, "1m"):
        filler = fill(lake, leaving=0)
        with pytest.raises(Transient) as full, DataWriter(IcebergStorage(f"file://{lake}/", {}), rows.schema) as writer:
            writer.write(rows)
        assert full.value.code == "destination_full"
        assert list(lake.iterdir()) == [filler]


def test_an_index_without_room_is_as_it_was(tmp_path: Path) -> None:
    """A commit that does not fit leaves the last one, and works once there is room."""
    folder = tmp_path / "work"
    keys = Keys(KeyKind.INTEGER, np.arange(10_000))
    with small_file_system(folder, "1m"):
        index = KeyIndex.open(folder / "index", KeyKind.INTEGER)
        index.add_file("f", keys.take(slice(0, 100)))
        index.commit(1)
        filler = fill(folder, leaving=16 << 10)
        index.add_file("g", keys)
        with pytest.raises(Transient) as full, index_errors(folder):
            index.commit(2)
        assert full.value.code == "work_dir_full"
        assert str(folder) in full.value.message
        index.discard()
        assert index.snapshot_id == 1
        filler.unlink()
        index.add_file("g", keys)
        index.commit(2)
        again = KeyIndex.open(folder / "index", KeyKind.INTEGER)
        assert again.snapshot_id == 2
        assert again.lookup(keys).found.all()


def test_an_index_on_a_read_only_file_system(tmp_path: Path) -> None:
    """As after an error of the disk. Nothing of the index changes, and the next commit works once it can be written."""
    folder = tmp_path / "work"
    keys = Keys(KeyKind.INTEGER, np.arange(100))
    with small_file_system(folder, "1m"):
        index = KeyIndex.open(folder / "index", KeyKind.INTEGER)
        index.commit(1)
        index.add_file("f", keys)
        with read_only(folder), pytest.raises(Transient) as failed, index_errors(folder):
            index.commit(2)
        assert failed.value.code == "work_dir_unavailable"
        assert f"the key index in {folder} cannot be used: [Errno 30] Read-only file system" in failed.value.message
        assert failed.value.hint == f"if this persists, check the disk that holds {folder}"
        index.discard()
        index.add_file("f", keys)
        index.commit(2)
        assert KeyIndex.open(folder / "index", KeyKind.INTEGER).lookup(keys).found.all()
