"""Sorted runs of index entries: in memory or mapped from a file, looked up and merged.


An entry is a key and a location; a location is a file's number and a row's position in it, or GONE. In a run keys are
sorted and each is there once. A run's file has the keys' ``high``, then their ``low`` if the kind has one, then the
locations, each as a column of ``capacity`` little-endian words, of which the first ``rows`` are used. These have a
checksum, which is verified when a file is opened and before it is merged, so damage is not carried into another run.
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
"""The location of a key that is no longer in the table: it hides what older runs say."""

_BLOCK: Final = 1 << 17
_POSITION_BITS: Final = 32

Keep = Callable[[Indices], Mask]


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """Keys, sorted and each once, with their locations."""

    keys: Keys
    locations: Indices

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, rows: Indices | Mask | slice) -> Entries:
        """Return these entries alone."""
        return Entries(self.keys.take(rows), self.locations[rows])


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Entries, and the file that holds them; ``name`` is empty for a run that is in memory alone."""

    entries: Entries
    name: str = ""
    capacity: int = 0
    checksum: int = 0

    @property
    def rows(self) -> int:
        """How many entries it has."""
        return len(self.entries)

    def verify(self) -> None:
        """Raise DamageError if the file is not what was written."""
        if self.name and _checksum(_columns_of(self.entries)) != self.checksum:
            raise DamageError(f"{self.name} is not what was written")


def pack(file_id: int, positions: Indices) -> Indices:
    """Return the locations of rows of one file; positions are below 2**32."""
    return positions | np.int64(file_id << _POSITION_BITS)


def file_ids(locations: Indices) -> npt.NDArray[np.int32]:
    """Return the files' numbers, GONE for GONE."""
    return (locations >> np.int64(_POSITION_BITS)).astype(np.int32)


def positions(locations: Indices) -> Indices:
    """Return the rows' positions; meaningless for GONE."""
    return locations & np.int64((1 << _POSITION_BITS) - 1)


def settle(parts: Sequence[Entries]) -> Entries:
    """Sort entries in any order, oldest first, and of each key leave the newest."""
    entries = join(parts)
    return entries.take(entries.keys.last())


def join(parts: Sequence[Entries]) -> Entries:
    """Return the entries of all parts, one after another; there is at least one part."""
    return Entries(Keys.concat([p.keys for p in parts]), np.concatenate([p.locations for p in parts]))


def locate(entries: Keys, keys: Keys) -> tuple[Indices, Mask]:
    """Return for each key the first place whose entry is not below it, and whether that entry is the key's."""
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
    # Among keys with equal high halves, of which there is hardly ever more than one, step up to the low half.
    same = same[low < wanted]
    while len(same):
        at[same] += 1
        same = same[at[same] < size]
        same = same[entries.high[at[same]] == keys.high[same]]
        low, wanted = entries.low[at[same]], keys.low[same]
        found[same[low == wanted]] = True
        same = same[low < wanted]
    return at, found


def merge(parts: Sequence[Entries], keep: Keep | None) -> Iterator[Entries]:
    """Yield the entries of all parts, oldest first, in order and block by block.

    Of each key it is the newest alone, and only what ``keep`` tells of its location to keep.
    """
    for pieces in zip(*_cut(parts), strict=True):
        block = _newest(join(pieces))
        if keep is not None:
            kept = keep(block.locations)
            block = block if kept.all() else block.take(kept)
        if len(block):
            yield block


def _cut(parts: Sequence[Entries]) -> list[list[Entries]]:
    """Cut all parts at the same keys, so that no piece is larger than a block."""
    fences = Keys.concat([p.keys.take(slice(_BLOCK, None, _BLOCK)) for p in parts])
    fences = fences.take(fences.last())
    pieces = []
    for part in parts:
        at, _ = locate(part.keys, fences)
        bounds = itertools.pairwise([0, *at.tolist(), len(part)])
        pieces.append([part.take(slice(a, b)) for a, b in bounds])
    return pieces


def _newest(entries: Entries) -> Entries:
    """Sort what is sorted in stretches, oldest first, and of each key leave the newest."""
    # A stable sort merges stretches that are sorted already: linear in their length.
    entries = entries.take(entries.keys.order(stable=True))
    last = np.append(entries.keys.starts()[1:], True)[: len(entries)]
    return entries if last.all() else entries.take(last)


def write_run(folder: Path, name: str, kind: KeyKind, blocks: Iterator[Entries], capacity: int) -> Run:
    """Write blocks of at most ``capacity`` entries in all to a new file and map it; `sync_run` makes it durable."""
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
    """Make a run's file survive a crash of the machine."""
    with (folder / name).open("rb") as f:
        os.fsync(f.fileno())


def open_run(folder: Path, name: str, kind: KeyKind, rows: int, capacity: int, checksum: int) -> Run:
    """Map a run's file and verify it; raise OSError or ValueError if it is missing or not what was written."""
    run = _map_run(folder, name, kind, rows, capacity, checksum)
    run.verify()
    return run


def _map_run(folder: Path, name: str, kind: KeyKind, rows: int, capacity: int, checksum: int) -> Run:
    with (folder / name).open("rb") as f:
        size = os.fstat(f.fileno()).st_size
        if size != _columns(kind) * capacity * 8 or rows > capacity:
            raise ValueError(f"{name} has {size} bytes, not those of {capacity} entries")
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
    """Return one checksum of several columns', which are written in turns."""
    return zlib.crc32(np.array(parts, "<u4").tobytes())


def _columns(kind: KeyKind) -> int:
    return 2 if kind is KeyKind.INTEGER else 3
