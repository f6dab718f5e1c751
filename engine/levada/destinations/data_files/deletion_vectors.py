"""Deletion vectors: the deleted positions of a data file as a bitmap, a blob of a Puffin file.

The formats are ``deletion-vector-v1`` of Iceberg's Puffin specification, and Puffin itself. All vectors of a batch are
in one file. A data file has one vector at most, so a new vector contains the positions of the one that it replaces.
"""

from __future__ import annotations

import itertools
import json
import struct
import uuid
import zlib
from array import array
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from levada.destinations.data_files.live_files import READERS, Positions, sorted_positions
from levada.destinations.data_files.storage import (
    Storage,
    WrittenFile,
    damaged,
    remove_files,
    storage_errors,
    table_file,
)

_PUFFIN_MAGIC: Final = b"PFA1"
_FOOTER_END: Final = struct.Struct("<iI4s")
"""The size of the footer's JSON, the flags, and the magic."""
_VECTOR_MAGIC: Final = b"\xd1\xd3\x39\x64"
_AROUND: Final = 12
"""Bytes of a blob around the bitmap: the length and the magic before it, and the checksum after it."""
_POSITION_FIELD: Final = 2147483545
"""The field ID that Iceberg reserves for the position of a row."""
_MAX_GAP: Final = 64 << 10
"""Bytes between two blobs up to which one read has both."""
_MAX_READ: Final = 8 << 20
"""The most bytes of one read, unless a single blob has more."""


@dataclass(frozen=True, slots=True)
class DeletionVector:
    """The place of a data file's deletion vector.

    ``path`` and ``file_bytes`` are those of the Puffin file. ``offset`` and ``length`` are those of the blob in bytes.
    ``rows`` is the number of deleted rows. ``partition`` is that of the data file, as in `WrittenFile`.
    """

    data_file: str
    path: str
    file_bytes: int
    offset: int
    length: int
    rows: int
    partition: Hashable = None


@dataclass(slots=True)
class DeletionVectors:
    """The deleted rows of a batch by data file, and the deletion vectors that `write` makes of them.

    ``replaced`` has the earlier vectors of the same data files, whose positions are in the new ones. ``partitions_of``
    returns the partitions of data files, because a vector has the partition of its data file.
    """

    storage: Storage
    partitions_of: Callable[[Sequence[str]], Sequence[Hashable]] = lambda paths: [None] * len(paths)
    deleted: dict[str, BitMap64] = field(default_factory=dict)
    written: list[DeletionVector] = field(default_factory=list)
    replaced: list[DeletionVector] = field(default_factory=list)

    def add(self, paths: Sequence[str], files: npt.NDArray[np.integer[Any]], positions: Positions) -> None:
        """Delete the rows at ``positions[i]`` of ``paths[files[i]]``."""
        numbers, positions = sorted_positions(files, positions)
        bounds = np.searchsorted(numbers, np.arange(len(paths) + 1))
        for path, begin, end in zip(paths, bounds[:-1], bounds[1:], strict=True):
            made = to_bitmap(positions[begin:end])
            if path in self.deleted:
                self.deleted[path].update(made)
            else:
                self.deleted[path] = made

    def write(self, live: Mapping[str, DeletionVector]) -> None:
        """Write the vectors to one file. ``live`` has the table's vectors by data file.

        A data file whose rows were all deleted before gets no new vector. Raise DestinationChanged if an earlier
        vector is missing or damaged.
        """
        written = write_vectors(self.storage, self._merged(live))
        partitions = self.partitions_of([v.data_file for v in written])
        self.written = [replace(v, partition=p) for v, p in zip(written, partitions, strict=True)]

    def _merged(self, live: Mapping[str, DeletionVector]) -> Iterator[tuple[str, BitMap64]]:
        former = [live[path] for path in self.deleted if path in live]
        for vector, earlier in read_vectors(self.storage, former):
            deleted = self.deleted.pop(vector.data_file)
            deleted.update(earlier)
            if len(deleted) > vector.rows:
                self.replaced.append(vector)
                yield vector.data_file, deleted
        while self.deleted:
            yield self.deleted.popitem()

    def discard(self) -> None:
        """Remove the file, which is not committed."""
        self.deleted, self.replaced = {}, []
        remove_files(self.storage, files_of(self.written))


def files_of(vectors: Iterable[DeletionVector]) -> list[WrittenFile]:
    """Return the Puffin files of the vectors, each once."""
    sizes = {v.path: v.file_bytes for v in vectors}
    return [WrittenFile(path, 0, size) for path, size in sizes.items()]


def to_bitmap(positions: Positions) -> BitMap64:
    """Return a bitmap of positions, which may repeat. None is negative."""
    values = array("Q")
    values.frombytes(positions.astype(np.uint64, copy=False).tobytes())
    return BitMap64(values)


def to_positions(bitmap: BitMap64) -> Positions:
    """Return the positions in a bitmap, ascending."""
    return np.frombuffer(bitmap.to_array(), np.uint64).astype(np.int64)


def encode_vector(bitmap: BitMap64) -> bytes:
    """Return the blob of a bitmap, which is compressed in place."""
    bitmap.run_optimize()
    body = _VECTOR_MAGIC + bitmap.serialize()
    return struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))


def decode_vector(blob: bytes) -> BitMap64:
    """Return the bitmap of a blob. Raise ValueError if the blob is damaged."""
    body = blob[4:-4]
    if len(blob) < _AROUND or struct.unpack(">I", blob[:4])[0] != len(body) or body[:4] != _VECTOR_MAGIC:
        raise ValueError("not a deletion vector")
    if struct.unpack(">I", blob[-4:])[0] != zlib.crc32(body):
        raise ValueError("wrong checksum")
    return BitMap64.deserialize(body[4:])


def write_vectors(storage: Storage, bitmaps: Iterable[tuple[str, BitMap64]]) -> list[DeletionVector]:
    """Write one Puffin file with a vector for each data file. Write none if there are no bitmaps."""
    waiting = iter(bitmaps)
    first = next(waiting, None)
    if first is None:
        return []
    path = storage.folder + f"{uuid.uuid4()}-deletes.puffin"
    try:
        with storage_errors(f"write {path}"), storage.create(path) as sink:
            return _write(sink, path, itertools.chain([first], waiting))
    except BaseException:
        remove_files(storage, [WrittenFile(path, 0, 0)])
        raise


def _write(sink: Any, path: str, bitmaps: Iterable[tuple[str, BitMap64]]) -> list[DeletionVector]:
    places: list[tuple[str, int, int, int]] = []
    sink.write(_PUFFIN_MAGIC)
    offset = len(_PUFFIN_MAGIC)
    for data_file, bitmap in bitmaps:
        rows, blob = len(bitmap), encode_vector(bitmap)
        sink.write(blob)
        places.append((data_file, offset, len(blob), rows))
        offset += len(blob)
    footer = json.dumps({"blobs": [_blob(*place) for place in places], "properties": {"created-by": "Levada"}}).encode()
    sink.write(_PUFFIN_MAGIC + footer + _FOOTER_END.pack(len(footer), 0, _PUFFIN_MAGIC))
    size = offset + len(_PUFFIN_MAGIC) + len(footer) + _FOOTER_END.size
    return [DeletionVector(file, path, size, begin, length, rows) for file, begin, length, rows in places]


def _blob(data_file: str, offset: int, length: int, rows: int) -> dict[str, Any]:
    return {
        "type": "deletion-vector-v1",
        "fields": [_POSITION_FIELD],
        # Unknown before the commit, for which the specification demands -1.
        "snapshot-id": -1,
        "sequence-number": -1,
        "offset": offset,
        "length": length,
        "properties": {"referenced-data-file": data_file, "cardinality": str(rows)},
    }


def read_vectors(
    storage: Storage, vectors: Sequence[DeletionVector], max_gap: int = _MAX_GAP
) -> Iterator[tuple[DeletionVector, BitMap64]]:
    """Yield the vectors with their bitmaps. Vectors of a file share a read up to a gap of ``max_gap`` bytes.

    Raise DestinationChanged if a file is missing, or if a vector is damaged or has another number of rows.
    """
    reads = iter(_reads(vectors, max_gap))
    with ThreadPoolExecutor(READERS) as pool:
        while wave := list(itertools.islice(reads, READERS)):
            for near, content in zip(wave, pool.map(lambda near: _read(storage, near), wave), strict=True):
                for vector in near:
                    begin = vector.offset - near[0].offset
                    yield vector, _checked(vector, content[begin : begin + vector.length])


def _reads(vectors: Sequence[DeletionVector], max_gap: int) -> Iterator[list[DeletionVector]]:
    """Yield the vectors of each read, by offset."""
    near: list[DeletionVector] = []
    for vector in sorted(vectors, key=lambda v: (v.path, v.offset)):
        if near and not _is_near(near, vector, max_gap):
            yield near
            near = []
        near.append(vector)
    if near:
        yield near


def _is_near(near: Sequence[DeletionVector], vector: DeletionVector, max_gap: int) -> bool:
    first, last = near[0], near[-1]
    gap = vector.offset - last.offset - last.length
    size = vector.offset + vector.length - first.offset
    return vector.path == last.path and gap <= max_gap and size <= _MAX_READ


def _read(storage: Storage, near: Sequence[DeletionVector]) -> bytes:
    path, begin = near[0].path, near[0].offset
    with table_file(storage, path), storage.open(path) as source:
        source.seek(begin)
        return bytes(source.read(near[-1].offset + near[-1].length - begin))


def _checked(vector: DeletionVector, blob: bytes) -> BitMap64:
    try:
        bitmap = decode_vector(blob)
    except ValueError as error:
        raise damaged(vector.path) from error
    if len(bitmap) != vector.rows:
        raise damaged(vector.path)
    return bitmap
