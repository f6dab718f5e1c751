"""Sorted runs of index entries, in memory or mapped from a file, with lookup and merge.

An entry is a key and a location. A location is the number of a data file and a row's position in it, or GONE. In a run
the keys are sorted and distinct. A run's file has the keys' ``high``, then their ``low`` if the kind has one, then the
locations. Each is a column of ``capacity`` little-endian words, and the first ``rows`` of them are used. The checksum
of these words is verified when a file is opened and before it is merged, so that damage does not spread to another run.
"""

from __future__ import annotations

import itertools
import mmap
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from levada.destinations.keys import Indices, KeyKind, Keys, Mask
from levada.private import private_file
from levada.segments.checksums import DamageError

GONE: Final = -1
"""The location of a key that is no longer in the table. It hides entries of older runs."""

_POSITION_BITS: Final = 32

Keep = Callable[[Indices], Mask]


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """Keys with their locations. In a run the keys are sorted and distinct."""

    keys: Keys
    locations: Indices

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, rows: Indices | Mask | slice) -> Entries:
        """Return the entries at these indices."""
        return Entries(self.keys.take(rows), self.locations[rows])


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Entries and their file. ``name`` is empty for a run that is only in memory."""

    entries: Entries
    name: str = ""
    capacity: int = 0
    checksum: int = 0

    @property
    def rows(self) -> int:
        """The number of entries."""
        return len(self.entries)

    def verify(self) -> None:
        """Raise DamageError if the file differs from what was written."""
        if self.name and _checksum(_columns_of(self.entries)) != self.checksum:
            raise DamageError(f"the checksum of {self.name} does not match")


def pack(file_id: int, positions: Indices) -> Indices:
    """Return the locations of rows of one file. Positions must be below 2**32."""
    return positions | np.int64(file_id << _POSITION_BITS)


def file_ids(locations: Indices) -> npt.NDArray[np.int32]:
    """Return the numbers of the files, or GONE for GONE."""
    return (locations >> np.int64(_POSITION_BITS)).astype(np.int32)


def positions(locations: Indices) -> Indices:
    """Return the positions of the rows. The result is undefined for GONE."""
    return locations & np.int64((1 << _POSITION_BITS) - 1)


def compact(parts: Sequence[Entries]) -> Entries:
    """Return the entries sorted by key, with only the newest entry of each key. ``parts`` begin with the oldest."""
    entries = join(parts)
    return entries.take(entries.keys.last())


def join(parts: Sequence[Entries]) -> Entries:
    """Concatenate the entries. ``parts`` must not be empty."""
    return Entries(Keys.concat([p.keys for p in parts]), np.concatenate([p.locations for p in parts]))


def span(entries: Keys, keys: Keys) -> slice:
    """Return the range of the sorted ``keys`` that are not below the first entry or above the last one."""
    if not len(entries):
        return slice(0, 0)
    first = np.searchsorted(keys.high, entries.high[0], "left")
    return slice(int(first), int(np.searchsorted(keys.high, entries.high[-1], "right")))


def locate(entries: Keys, keys: Keys) -> tuple[Indices, Mask]:
    """Return the index of the first entry that is not below each key, and a mask of the keys that it equals."""
    at = np.searchsorted(entries.high, keys.high)
    size = len(entries)
    if not size:
        return at, np.zeros(len(keys), np.bool_)
    found: Mask = entries.high[np.minimum(at, size - 1)] == keys.high
    found &= at < size
    if entries.low is None or keys.low is None:
        return at, found
    same = np.flatnonzero(found)
    low = entries.low[at[same]]
    wanted = keys.low[same]
    found[same] = low == wanted
    # Several keys with an equal high half are very rare. Step through them to the low half.
    same = same[low < wanted]
    while len(same):
        at[same] += 1
        same = same[at[same] < size]
        same = same[entries.high[at[same]] == keys.high[same]]
        low, wanted = entries.low[at[same]], keys.low[same]
        found[same[low == wanted]] = True
        same = same[low < wanted]
    return at, found


def merge(parts: Sequence[Entries], keep: Keep | None, block_rows: int) -> Iterator[Entries]:
    """Merge parts, and yield the entries sorted by key, in blocks. ``parts`` begin with the oldest.

    A block has at most ``block_rows`` entries of each part.

    Only the newest entry of each key is yielded, and only if ``keep`` returns True for its location.
    """
    for pieces in zip(*_cut(parts, block_rows), strict=True):
        block = _newest(join(pieces))
        if keep is not None:
            kept = keep(block.locations)
            block = block if kept.all() else block.take(kept)
        if len(block):
            yield block


def _cut(parts: Sequence[Entries], block_rows: int) -> list[list[Entries]]:
    """Split all parts at the same keys, so that no piece is larger than a block."""
    fences = Keys.concat([p.keys.take(slice(block_rows, None, block_rows)) for p in parts])
    fences = fences.take(fences.last())
    pieces = []
    for part in parts:
        at, _ = locate(part.keys, fences)
        bounds = itertools.pairwise([0, *at.tolist(), len(part)])
        pieces.append([part.take(slice(a, b)) for a, b in bounds])
    return pieces


def _newest(entries: Entries) -> Entries:
    """Return the entries sorted by key, with only the newest of each key.

    ``entries`` are the concatenation of sorted parts, oldest first.
    """
    # A stable sort merges sorted parts in linear time.
    entries = entries.take(entries.keys.order(stable=True))
    last = np.append(entries.keys.starts()[1:], True)[: len(entries)]
    return entries if last.all() else entries.take(last)


def write_run(folder: Path, name: str, kind: KeyKind, blocks: Iterator[Entries], capacity: int) -> Run:
    """Write blocks with at most ``capacity`` entries in total to a new file, and map it.

    `sync_run` makes it durable.
    """
    path = folder / name
    rows = 0
    parts = [0] * _columns(kind)
    with private_file(path, "wb") as f:
        for block in blocks:
            for i, column in enumerate(_columns_of(block)):
                f.seek((i * capacity + rows) * 8)
                f.write(column.data)
                parts[i] = zlib.crc32(column.data, parts[i])
            rows += len(block)
        f.truncate(_columns(kind) * capacity * 8)
    return _map_run(folder, name, kind, rows, capacity, _combined(parts))


def sync_run(folder: Path, name: str) -> None:
    """Flush a run's file to disk, so that it survives a crash of the machine."""
    with (folder / name).open("rb") as f:
        os.fsync(f.fileno())


def open_run(folder: Path, name: str, kind: KeyKind, rows: int, capacity: int, checksum: int) -> Run:
    """Map a run's file and verify it. Raise OSError or ValueError if it is missing or damaged."""
    run = _map_run(folder, name, kind, rows, capacity, checksum)
    run.verify()
    return run


def _map_run(folder: Path, name: str, kind: KeyKind, rows: int, capacity: int, checksum: int) -> Run:
    with (folder / name).open("rb") as f:
        size = os.fstat(f.fileno()).st_size
        if size != _columns(kind) * capacity * 8 or rows > capacity:
            raise ValueError(f"{name} has {size} bytes, which does not match {capacity} entries")
        if not size:
            return Run(Entries(Keys.empty(kind), np.empty(0, np.int64)), name, capacity, checksum)
        mapped = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
    high = np.frombuffer(mapped, np.int64 if kind is KeyKind.INTEGER else np.uint64, rows)
    low = None if kind is KeyKind.INTEGER else np.frombuffer(mapped, np.uint64, rows, capacity * 8)
    locations = np.frombuffer(mapped, np.int64, rows, (_columns(kind) - 1) * capacity * 8)
    return Run(Entries(Keys(kind, high, low), locations), name, capacity, checksum)


def _columns_of(entries: Entries) -> tuple[npt.NDArray[Any], ...]:
    low = () if entries.keys.low is None else (entries.keys.low,)
    return tuple(np.ascontiguousarray(column) for column in (entries.keys.high, *low, entries.locations))


def _checksum(columns: Sequence[npt.NDArray[Any]]) -> int:
    return _combined([zlib.crc32(column.data) for column in columns])


def _combined(parts: Sequence[int]) -> int:
    """Combine the checksums of several columns, which are written alternately, into one."""
    return zlib.crc32(np.array(parts, "<u4").tobytes())


def _columns(kind: KeyKind) -> int:
    return 2 if kind is KeyKind.INTEGER else 3
