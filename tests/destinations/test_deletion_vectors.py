"""Deletion vectors in Puffin files: written, merged, read back by PyIceberg, and refused if damaged."""

from __future__ import annotations

import json
import struct
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import fs
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.puffin import PuffinFile
from pyroaring import BitMap, BitMap64

from levada.destinations.data_files.deletion_vectors import (
    DeletionVector,
    DeletionVectors,
    decode_vector,
    encode_vector,
    read_vectors,
    to_bitmap,
    to_positions,
    write_vectors,
)
from levada.destinations.data_files.storage import FileSystemStorage
from levada.destinations.iceberg.delete_files import describe_vector, vector_of
from levada.destinations.iceberg.partitioning import FilePartition
from levada.errors import DestinationChanged

LAST = (2**31 - 2 << 32) + 2**31
"""The last position that Iceberg's Java library can read."""
positions = st.lists(st.one_of(st.integers(0, 300), st.integers(0, 2**33), st.integers(0, LAST)), max_size=60)


def by_pyiceberg(path: str) -> dict[str, list[int]]:
    """Return the positions of each data file in a Puffin file."""
    found = deletion_vectors_from_puffin_file(PuffinFile(Path(path).read_bytes()))
    return {v.referenced_data_file: v.to_vector().to_pylist() for v in found}


@pytest.fixture
def storage(tmp_path: Path) -> FileSystemStorage:
    """Return a folder for the files."""
    return FileSystemStorage(f"{tmp_path}/lake/", fs.LocalFileSystem())


def deleted(storage: FileSystemStorage, live: dict[str, DeletionVector], **rows: list[int]) -> DeletionVectors:
    """Delete rows in two calls, and write the vectors."""
    made = DeletionVectors(storage)
    paths = sorted(rows)
    for half in (0, 1):
        pairs = [(i, p) for i, path in enumerate(paths) for p in rows[path][half::2]]
        made.add(paths, np.array([i for i, _ in pairs], np.int64), np.array([p for _, p in pairs], np.int64))
    made.write(live)
    return made


@given(positions)
def test_a_blob_holds_each_position_once(rows: list[int]) -> None:
    """Positions come back ascending and distinct, also beyond 2^31 and 2^32."""
    bitmap = decode_vector(encode_vector(to_bitmap(np.array(rows, np.int64))))
    assert to_positions(bitmap).tolist() == sorted(set(rows))


@given(st.lists(st.integers(0, 2**33), max_size=30))
def test_the_bytes_of_a_blob(rows: list[int]) -> None:
    """The blob is built up as Puffin's specification says, from 32-bit bitmaps by ascending key."""
    blob = encode_vector(BitMap64(rows))
    body = blob[4:-4]
    assert struct.unpack(">I", blob[:4])[0] == len(body)
    assert struct.unpack(">I", blob[-4:])[0] == zlib.crc32(body)
    assert body[:4] == bytes([0xD1, 0xD3, 0x39, 0x64])
    keys = sorted({r >> 32 for r in rows})
    parts = [BitMap(r & 0xFFFFFFFF for r in rows if r >> 32 == key) for key in keys]
    for part in parts:
        part.run_optimize()
    bitmaps = b"".join(struct.pack("<I", key) + part.serialize() for key, part in zip(keys, parts, strict=True))
    assert body[4:] == struct.pack("<Q", len(keys)) + bitmaps


def test_empty_bitmaps_of_other_writers() -> None:
    """Iceberg's Java library writes an empty bitmap for each key without positions."""
    bitmaps = [struct.pack("<I", i) + BitMap(rows).serialize() for i, rows in enumerate([[], [], [7]])]
    body = b"\xd1\xd3\x39\x64" + struct.pack("<Q", 3) + b"".join(bitmaps)
    blob = struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))
    assert to_positions(decode_vector(blob)).tolist() == [(2 << 32) + 7]


def test_vectors_of_a_batch_are_in_one_file(storage: FileSystemStorage) -> None:
    """A file has a vector for each data file, at the places that its footer and the result say."""
    made = deleted(storage, {}, a=[3, 1, 3], b=[2**31 + 1, 0], c=[*range(100_000)])
    [path] = {v.path for v in made.written}
    assert by_pyiceberg(path) == {"a": [1, 3], "b": [0, 2**31 + 1], "c": [*range(100_000)]}
    content = Path(path).read_bytes()
    footer = json.loads(content[-12 - struct.unpack("<i", content[-12:-8])[0] : -12])
    assert {(v.data_file, v.offset, v.length, str(v.rows), v.file_bytes) for v in made.written} == {
        (p["referenced-data-file"], b["offset"], b["length"], p["cardinality"], len(content))
        for b in footer["blobs"]
        for p in [b["properties"]]
    }
    assert {(b["type"], b["snapshot-id"], b["sequence-number"]) for b in footer["blobs"]} == {
        ("deletion-vector-v1", -1, -1)
    }


def test_a_vector_contains_the_one_that_it_replaces(storage: FileSystemStorage) -> None:
    """Earlier positions are merged, those of other data files are left alone, and repeated deletes write nothing."""
    first = deleted(storage, {}, a=[1], b=[2], c=[3])
    live = {v.data_file: v for v in first.written}
    second = deleted(storage, live, a=[5, 1], c=[3], d=[4])
    assert {v.data_file: (to_positions(b).tolist(), v.rows) for v, b in read_vectors(storage, second.written)} == {
        "a": ([1, 5], 2),
        "d": ([4], 1),
    }
    assert second.replaced == [live["a"]]
    again = deleted(storage, {**live, **{v.data_file: v for v in second.written}}, a=[1, 5], d=[4, 4])
    assert (again.written, again.replaced) == ([], [])
    second.discard()
    assert not Path(second.written[0].path).exists()


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5000)), max_size=200),
    st.integers(0, 40),
    st.sampled_from([0, 100, 64 << 10]),
)
def test_vectors_are_found_among_others(rows: list[tuple[int, int]], skipped: int, max_gap: int) -> None:
    """Any selection of vectors of several files is read back, whatever lies between them, in one read or in many."""
    with tempfile.TemporaryDirectory() as folder:
        storage = FileSystemStorage(f"{folder}/", fs.LocalFileSystem())
        want = {f"{i}": BitMap64(p for f, p in rows if f == i) for i in range(10)}
        wide = [("wide", to_bitmap(np.arange(0, 2_000_000, 7)))] * (skipped % 2)
        made = [*write_vectors(storage, [*list(want.items())[:5], *wide, *list(want.items())[5:]])]
        made += write_vectors(storage, [])
        picked = [v for i, v in enumerate(made) if i != skipped and v.data_file != "wide"]
        assert {v.data_file: b for v, b in read_vectors(storage, picked, max_gap)} == {
            v.data_file: want[v.data_file] for v in picked
        }


def test_a_damaged_vector_is_refused(storage: FileSystemStorage) -> None:
    """A changed byte, a cut file, a missing file and another number of rows are all noticed."""
    [vector] = deleted(storage, {}, a=[1, 900_000, 7]).written
    path = Path(vector.path)
    whole = path.read_bytes()

    def refused(content: bytes) -> None:
        path.write_bytes(content)
        with pytest.raises(DestinationChanged) as caught:
            list(read_vectors(storage, [vector]))
        assert caught.value.code == "table_damaged"

    for i in range(vector.offset, vector.offset + vector.length):
        refused(whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :])
        refused(whole[:i])
    path.unlink()
    with pytest.raises(DestinationChanged):
        list(read_vectors(storage, [vector]))
    path.write_bytes(whole)
    wrong = DeletionVector(vector.data_file, vector.path, vector.file_bytes, vector.offset, vector.length, 2)
    with pytest.raises(DestinationChanged):
        list(read_vectors(storage, [wrong]))


def test_a_file_that_cannot_be_written_is_removed(storage: FileSystemStorage) -> None:
    """After an error on the way no file is left."""

    def failing() -> Iterator[tuple[str, BitMap64]]:
        yield "a", BitMap64([1])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_vectors(storage, failing())
    assert list(Path(storage.folder).iterdir()) == []


@pytest.mark.parametrize("partition", [FilePartition(0), FilePartition(1), FilePartition(1, '{"1000": 19725}')])
def test_a_vector_that_was_read_is_the_one_of_its_spec(partition: FilePartition) -> None:
    """Also in the partition of NULL, which Iceberg describes without a value: no commit finds one of another spec."""
    written = DeletionVector("data.parquet", "deletes.puffin", 100, 4, 40, 3, partition)
    place = {"spec-id": partition.spec_id}
    assert vector_of(describe_vector(written, {**place, "partition": json.loads(partition.values)})) == written
    if partition == FilePartition(partition.spec_id):
        assert vector_of(describe_vector(written, place)) == written
