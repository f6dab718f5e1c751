"""The key index of a table: a local index from key to data file and position.

It is a log-structured merge tree. Each commit adds one sorted run. Runs are merged so that each is at least `RATIO`
times as large as all newer runs together. A lookup searches the newest run first. Runs are memory-mapped files of 16
bytes per row (24 for hashed keys), so the operating system caches the pages in use.

The index is a cache of the table, and can be rebuilt from it. `KeyIndex.snapshot_id` is the table's snapshot to which
the index corresponds. If that is not the table's current one, the destination updates or rebuilds the index. An
unreadable index is treated as an empty one without a snapshot, and not as an error. Every file has a checksum, so that
a damaged or outdated file is detected.

`KeyIndex.seed` is the secret seed of hashed keys. It is created and removed with the index.

Each commit atomically replaces ``index.json``. That file lists the runs' files, and the valid length of the log of data
files. Other files in the folder are leftovers, and are removed.

A commit of a small index does not wait for the disk. After a crash of the machine its files may be damaged, which their
checksums show, and reading the table again is cheap. Into many small tables, most of a commit was such waits.
"""

from __future__ import annotations

import errno
import json
import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from levada.destinations.key_index import runs
from levada.destinations.key_index.file_numbers import FileNumbers
from levada.destinations.key_index.runs import Entries, Run
from levada.destinations.keys import Indices, KeyKind, Keys, Mask, new_seed
from levada.errors import Transient
from levada.locations import FULL
from levada.private import private_folder, replace_file
from levada.segments.checksums import seal, unseal


@dataclass(frozen=True, slots=True)
class IndexLimits:
    """The sizes of a key index, in entries and lines.

    Runs are merged in blocks of at most ``block_rows`` of each. From ``in_memory_rows`` uncommitted entries on, they
    are written to a file instead of held in memory. The log of file numbers is rewritten if it has more lines than
    three times the number of files plus ``obsolete_lines``. With ``durable_rows`` entries and more, a commit waits for
    the disk.
    """

    block_rows: int = 1 << 17
    in_memory_rows: int = 1 << 20
    obsolete_lines: int = 1000
    durable_rows: int = 1 << 17


LIMITS: Final = IndexLimits()
"""The limits of the destinations' indexes."""


RATIO: Final = 4

_MANIFEST: Final = "index.json"
_VERSION: Final = 4
"""In version 2, a hash had the columns of a key in the order of the source's index. Version 3 did not have the key."""

_FAILING: Final = frozenset({errno.EROFS, errno.EIO, errno.ESTALE, errno.EACCES, errno.EPERM})

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Locations:
    """The locations of rows, in the order of the requested keys.

    Where ``found`` is False, the other values are undefined.
    """

    file_id: npt.NDArray[np.int32]
    position: Indices
    found: Mask

    def take(self, chosen: Mask) -> Locations:
        """Return some of the locations."""
        return Locations(self.file_id[chosen], self.position[chosen], self.found[chosen])


@contextmanager
def index_errors(folder: Path, what: str = "the key index") -> Iterator[None]:
    """Convert errors of the file system of ``what`` to Transient ``work_dir_full`` or ``work_dir_unavailable``."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise Transient(
                "work_dir_full",
                f"no space left for {what} in {folder}",
                hint=f"free space in the file system of {folder}, or enlarge it",
            ) from error
        if error.errno not in _FAILING:
            raise
        raise Transient(
            "work_dir_unavailable",
            f"{what} in {folder} cannot be used: {error}",
            hint=f"if this persists, check the disk that holds {folder}",
        ) from error


class KeyIndex:
    """The key index of one table, in its own folder. Not thread-safe.

    Lookups see changes immediately. `commit` stores all of them atomically, and `discard` undoes them.
    """

    def __init__(self, folder: Path, kind: KeyKind, limits: IndexLimits = LIMITS, key: Collection[int] = ()) -> None:
        self._folder = folder
        self._limits = limits
        self._kind = kind
        self.key = tuple(sorted(key))
        """The attnums of the key's columns, ascending."""
        self._snapshot_id: int | None = None
        self._next_run = 0
        self._files = FileNumbers(self._limits.obsolete_lines)
        self._runs: list[Run] = []
        self._durable: set[str] = set()
        self._recent: list[Entries] = []
        self._recent_rows = 0
        self._added_rows = 0
        self.seed = new_seed()
        """The seed under which keys must be encoded, see `levada.destinations.keys`."""

    @classmethod
    def open(cls, folder: Path, kind: KeyKind, limits: IndexLimits = LIMITS, key: Collection[int] = ()) -> KeyIndex:
        """Return the last committed index, or an empty one if there is no readable index of this key.

        ``key`` has the attnums of the key's columns. The keys of two versions of a table can be of the same kind.
        """
        private_folder(folder)
        index = cls(folder, kind, limits, key)
        index.discard()
        return index

    @property
    def snapshot_id(self) -> int | None:
        """The table's snapshot at the last commit of the index, or None before the first."""
        return self._snapshot_id

    @property
    def paths(self) -> frozenset[str]:
        """The paths of all data files in the index."""
        return self._files.paths

    def file_path(self, file_id: int) -> str:
        """Return the path of a data file. Raise KeyError for an unknown number."""
        return self._files.path(file_id)

    def add_file(self, path: str, keys: Keys, positions: Indices | None = None) -> None:
        """Add rows of a data file, and replace entries with the same keys. By default the positions count from 0."""
        if positions is None:
            positions = np.arange(len(keys), dtype=np.int64)
        self._added_rows += len(keys)
        self._add(Entries(keys, runs.pack(self._files.add(path), positions)))

    def is_distinct(self) -> bool:
        """Return True if each row that was added since `clear` has another key, and none was removed or looked up."""
        self._flush_recent()
        entries = [run.entries for run in self._runs]
        distinct = sum(len(block) for block in runs.merge(entries, None, self._limits.block_rows)) if entries else 0
        return distinct == self._added_rows

    def lookup(self, keys: Keys, *, forget: bool = False) -> Locations:
        """Return the location of the newest row of each key.

        With ``forget`` the found entries are removed. Use it before the rows are deleted, because nothing else removes
        their entries. A stale entry does no harm, as it only leads to a second delete of the same row.
        """
        self._flush_recent()
        # Sort the keys, so that adjacent lookups access the same pages.
        order = keys.order()
        wanted, left = keys.take(order), order
        locations = np.full(len(keys), runs.GONE, np.int64)
        for run in reversed(self._runs):
            if not len(left):
                break
            within = runs.span(run.entries.keys, wanted)
            at, hit = runs.locate(run.entries.keys, wanted.take(within))
            if not hit.any():
                continue
            locations[left[within][hit]] = run.entries.locations[at[hit]]
            missed = np.ones(len(left), np.bool_)
            missed[within] = ~hit
            wanted, left = wanted.take(missed), left[missed]
        file_id = runs.file_ids(locations)
        found: Mask = self._files.present()[file_id]
        if forget and found.any():
            self._add(Entries(keys.take(found), np.full(int(found.sum()), runs.GONE, np.int64)))
        return Locations(file_id, runs.positions(locations), found)

    def remove_files(self, paths: Iterable[str]) -> None:
        """Remove all rows in these data files. Unknown files are ignored."""
        for path in paths:
            self._files.remove(path)

    def clear(self) -> None:
        """Remove all rows and data files."""
        self._runs, self._recent, self._recent_rows, self._added_rows = [], [], 0, 0
        self._files.clear()

    def commit(self, snapshot_id: int) -> None:
        """Make all changes since the last commit survive the process, for the table's snapshot ``snapshot_id``.

        Those of an index of ``durable_rows`` and more also survive a crash of the machine. After an OSError, such as a
        full disk, call `discard` before the index is used again.
        """
        self._flush_recent()
        self._merge(0, RATIO)
        self._runs = [r if r.name else self._write(iter([r.entries]), r.rows) for r in self._runs]
        names = {r.name for r in self._runs}
        durable = sum(r.rows for r in self._runs) >= self._limits.durable_rows
        for name in names - self._durable if durable else ():
            runs.sync_run(self._folder, name)
        self._files.save(self._folder, durable=durable)
        self._snapshot_id = snapshot_id
        self._write_manifest(durable=durable)
        self._durable = names if durable else set()
        self._remove_leftovers()

    def discard(self) -> None:
        """Undo all changes since the last commit."""
        self._begin()
        manifest = self._folder / _MANIFEST
        if manifest.exists():
            try:
                self._read_manifest(manifest)
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
                _log.warning("discarding the key index in %s, because it cannot be read: %s", self._folder, e)
                self._begin()
                # The names of runs are reused, so this manifest must not stay and refer to new files.
                manifest.unlink()
        self._remove_leftovers()

    def _begin(self) -> None:
        self._snapshot_id = None
        self._next_run = 0
        self._files = FileNumbers(self._limits.obsolete_lines)
        self._durable = set()
        self.seed = new_seed()
        self.clear()

    def _add(self, entries: Entries) -> None:
        if not len(entries):
            return
        self._recent.append(entries)
        self._recent_rows += len(entries)
        if self._recent_rows >= self._limits.in_memory_rows:
            self._flush_recent()
            spilled = self._runs.pop()
            self._runs.append(self._write(iter([spilled.entries]), spilled.rows))

    def _flush_recent(self) -> None:
        """Sort the added entries into a new run in memory."""
        if self._recent:
            self._runs.append(Run(runs.compact(self._recent)))
            self._recent, self._recent_rows = [], 0
            # A lookup searches each run, and between the pieces of a large batch there are many.
            begin = next((i + 1 for i in reversed(range(len(self._runs))) if self._runs[i].name), 0)
            self._merge(begin, 1)

    def _merge(self, begin: int, ratio: int) -> None:
        """Merge runs from ``begin`` on until each is at least ``ratio`` times as large as all newer ones together."""
        newer = 0
        start = len(self._runs)
        for i in reversed(range(begin, len(self._runs))):
            if self._runs[i].rows < ratio * newer:
                start = i
            newer += self._runs[i].rows
        if start < len(self._runs):
            self._runs[start:] = self._merged(self._runs[start:], oldest=start == 0)

    def _merged(self, parts: Sequence[Run], *, oldest: bool) -> list[Run]:
        for part in parts:
            part.verify()
        # Entries that are removed, or in removed files, must hide entries of older runs as long as there are older
        # runs.
        present = self._files.present()
        keep = (lambda locations: present[runs.file_ids(locations)]) if oldest else None
        blocks = runs.merge([r.entries for r in parts], keep, self._limits.block_rows)
        capacity = sum(r.rows for r in parts)
        if capacity >= self._limits.in_memory_rows:
            return [self._write(blocks, capacity)]
        merged = list(blocks)
        return [Run(runs.join(merged))] if merged else []

    def _write(self, blocks: Iterator[Entries], capacity: int) -> Run:
        name = f"run-{self._next_run}"
        self._next_run += 1
        return runs.write_run(self._folder, name, self._kind, blocks, capacity)

    def _write_manifest(self, *, durable: bool) -> None:
        data = {
            "kind": self._kind.value,
            "key": self.key,
            "seed": self.seed.hex(),
            "snapshotId": self._snapshot_id,
            "nextRun": self._next_run,
            "files": self._files.saved,
            "runs": [{"name": r.name, "rows": r.rows, "capacity": r.capacity, "crc32": r.checksum} for r in self._runs],
        }
        replace_file(self._folder / _MANIFEST, seal(json.dumps(data).encode(), _VERSION), durable=durable)

    def _read_manifest(self, path: Path) -> None:
        data: dict[str, Any] = json.loads(unseal(path.read_bytes(), _VERSION))
        if data["kind"] != self._kind.value:
            raise ValueError(f"it has keys of kind {data['kind']}")
        if data["key"] != list(self.key):
            raise ValueError(f"it has the key {data['key']}")
        self._files = FileNumbers.load(self._folder, data["files"], self._limits.obsolete_lines)
        self._runs = [
            runs.open_run(self._folder, r["name"], self._kind, r["rows"], r["capacity"], r["crc32"])
            for r in data["runs"]
        ]
        # A process before may have left them to the system, which writes them in its own time.
        self._durable = set()
        self._next_run = data["nextRun"]
        self._snapshot_id = data["snapshotId"]
        self.seed = bytes.fromhex(data["seed"])

    def _remove_leftovers(self) -> None:
        """Remove the files to which the manifest does not refer. The folder belongs to the index alone."""
        known = {_MANIFEST, self._files.log_name, *(r.name for r in self._runs)}
        for path in self._folder.iterdir():
            if path.name not in known:
                path.unlink()
