"""Where the rows of a table are: an index from key to data file and position, kept by who writes the table.

It is a log-structured merge tree: what a commit adds is one sorted run, and runs are merged so that each is at least
`RATIO` times as large as all newer ones together. A look-up asks the newest run first. Runs are files of 16 bytes a row
(24 for hashed keys) that are mapped into memory, so the operating system keeps what is used.

The index is a cache: the table's metadata is the truth. `KeyIndex.snapshot_id` names the snapshot that the index stands
for; where it is not the table's current one, whoever holds the index adds what is missing or begins anew. An
index that cannot be read is therefore an empty one without a snapshot, and no error. Every file has a checksum, so one
that is damaged, or of another time than the others, cannot be read.

`KeyIndex.seed` is the secret of hashed keys. It is made with the index and goes with it.

A folder has ``index.json``, replaced whole by each commit; it names the runs' files and how much of the log of file
names counts. Other files in the folder are left-overs and removed.
"""

from __future__ import annotations

import errno
import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from levada.destinations.iceberg import index_runs as runs
from levada.destinations.iceberg.index_files import FileNumbers
from levada.destinations.iceberg.index_runs import Entries, Run
from levada.destinations.keys import Indices, KeyKind, Keys, Mask, new_seed
from levada.errors import Transient
from levada.locations import FULL
from levada.private import private_folder, replace_file
from levada.segments.checksums import seal, unseal

RATIO: Final = 4

_MANIFEST: Final = "index.json"
_VERSION: Final = 2
_IN_MEMORY_ROWS: Final = 1 << 20
"""More entries than this are not held in memory, but written to a file before they are committed."""

_FAILING: Final = frozenset({errno.EROFS, errno.EIO, errno.ESTALE, errno.EACCES, errno.EPERM})

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Locations:
    """Where rows are, in the order of the keys asked for; where ``found`` is False the others mean nothing."""

    file_id: npt.NDArray[np.int32]
    position: Indices
    found: Mask


@contextmanager
def index_errors(folder: Path) -> Iterator[None]:
    """Turn errors of the file system of an index into Transient ``work_dir_full`` or ``work_dir_unavailable``."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise Transient(
                "work_dir_full",
                f"no room for the key index in {folder}",
                hint=f"give the file system of {folder} more room",
            ) from error
        if error.errno not in _FAILING:
            raise
        raise Transient("work_dir_unavailable", f"the key index in {folder} cannot be used: {error}") from error


class KeyIndex:
    """The index of one table, in a folder of its own; for one thread at a time.

    Changes are seen by look-ups at once and made durable, all or none, by `commit`; `discard` takes them back.
    """

    def __init__(self, folder: Path, kind: KeyKind) -> None:
        self._folder = folder
        self._kind = kind
        self._snapshot_id: int | None = None
        self._next_run = 0
        self._files = FileNumbers()
        self._runs: list[Run] = []
        self._durable: set[str] = set()
        self._recent: list[Entries] = []
        self._recent_rows = 0
        self.seed = new_seed()
        """The seed of the keys that are looked up and added, see `levada.destinations.keys`."""

    @classmethod
    def open(cls, folder: Path, kind: KeyKind) -> KeyIndex:
        """Return the index as it was last committed, or an empty one if there is none of this kind that can be read."""
        private_folder(folder)
        index = cls(folder, kind)
        index.discard()
        return index

    @property
    def snapshot_id(self) -> int | None:
        """The table's snapshot that the last commit named; None before the first."""
        return self._snapshot_id

    def file_path(self, file_id: int) -> str:
        """Return the path under which the file was added; raise KeyError for a file that is not there."""
        return self._files.path(file_id)

    def add_file(self, path: str, keys: Keys, positions: Indices | None = None) -> None:
        """Enter rows of a data file, at positions from 0 on unless told; entries of the same keys are replaced."""
        if positions is None:
            positions = np.arange(len(keys), dtype=np.int64)
        self._remember(Entries(keys, runs.pack(self._files.add(path), positions)))

    def lookup(self, keys: Keys, *, forget: bool = False) -> Locations:
        """Return where the rows of these keys are, the newest of each key.

        With ``forget`` they are gone from then on, for who deletes what is found: only so do entries of deleted rows
        leave the index. (A row found after it was deleted does no harm otherwise: it is deleted once more.)
        """
        self._settle()
        # Sorted, neighbouring searches touch the same pages.
        order = keys.order()
        wanted, left = keys.take(order), order
        locations = np.full(len(keys), runs.GONE, np.int64)
        for run in reversed(self._runs):
            if not len(left):
                break
            at, hit = runs.locate(run.entries.keys, wanted)
            locations[left[hit]] = run.entries.locations[at[hit]]
            missed = ~hit
            wanted, left = wanted.take(missed), left[missed]
        file_id = runs.file_ids(locations)
        found: Mask = self._files.present()[file_id]
        if forget and found.any():
            self._remember(Entries(keys.take(found), np.full(int(found.sum()), runs.GONE, np.int64)))
        return Locations(file_id, runs.positions(locations), found)

    def remove_files(self, paths: Iterable[str]) -> None:
        """Forget every row in these files; files that are not there are left alone."""
        for path in paths:
            self._files.remove(path)

    def clear(self) -> None:
        """Forget every row and file."""
        self._runs, self._recent, self._recent_rows = [], [], 0
        self._files.clear()

    def commit(self, snapshot_id: int) -> None:
        """Make every change since the last commit durable, and this the snapshot that the index stands for.

        After an OSError (a full disk) the index is of use again after `discard`.
        """
        self._settle()
        self._merge()
        self._runs = [r if r.name else self._write(iter([r.entries]), r.rows) for r in self._runs]
        names = {r.name for r in self._runs}
        for name in names - self._durable:
            runs.sync_run(self._folder, name)
        self._files.save(self._folder)
        self._snapshot_id = snapshot_id
        self._write_manifest()
        self._durable = names
        self._remove_leftovers()

    def discard(self) -> None:
        """Go back to the last commit."""
        self._begin()
        manifest = self._folder / _MANIFEST
        if manifest.exists():
            try:
                self._read_manifest(manifest)
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as e:
                _log.warning("the key index in %s cannot be read and begins anew: %s", self._folder, e)
                self._begin()
                # Names of runs are used again: it must not find others than it meant.
                manifest.unlink()
        self._remove_leftovers()

    def _begin(self) -> None:
        self._snapshot_id = None
        self._next_run = 0
        self._files = FileNumbers()
        self._durable = set()
        self.seed = new_seed()
        self.clear()

    def _remember(self, entries: Entries) -> None:
        if not len(entries):
            return
        self._recent.append(entries)
        self._recent_rows += len(entries)
        if self._recent_rows >= _IN_MEMORY_ROWS:
            self._settle()
            spilled = self._runs.pop()
            self._runs.append(self._write(iter([spilled.entries]), spilled.rows))

    def _settle(self) -> None:
        """Make a run of what was added, in memory."""
        if self._recent:
            self._runs.append(Run(runs.settle(self._recent)))
            self._recent, self._recent_rows = [], 0

    def _merge(self) -> None:
        """Merge runs until each is `RATIO` times as large as all newer ones together."""
        newer = 0
        start = len(self._runs)
        for i in reversed(range(len(self._runs))):
            if self._runs[i].rows < RATIO * newer:
                start = i
            newer += self._runs[i].rows
        if start < len(self._runs):
            self._runs[start:] = self._merged(self._runs[start:], oldest=start == 0)

    def _merged(self, parts: Sequence[Run], *, oldest: bool) -> list[Run]:
        for part in parts:
            part.verify()
        # What is gone, and what was in removed files, must go on hiding entries of older runs while there are any.
        present = self._files.present()
        keep = (lambda locations: present[runs.file_ids(locations)]) if oldest else None
        blocks = runs.merge([r.entries for r in parts], keep)
        capacity = sum(r.rows for r in parts)
        if capacity >= _IN_MEMORY_ROWS:
            return [self._write(blocks, capacity)]
        merged = list(blocks)
        return [Run(runs.join(merged))] if merged else []

    def _write(self, blocks: Iterator[Entries], capacity: int) -> Run:
        name = f"run-{self._next_run}"
        self._next_run += 1
        return runs.write_run(self._folder, name, self._kind, blocks, capacity)

    def _write_manifest(self) -> None:
        data = {
            "kind": self._kind.value,
            "seed": self.seed.hex(),
            "snapshotId": self._snapshot_id,
            "nextRun": self._next_run,
            "files": self._files.saved,
            "runs": [{"name": r.name, "rows": r.rows, "capacity": r.capacity, "crc32": r.checksum} for r in self._runs],
        }
        replace_file(self._folder / _MANIFEST, seal(json.dumps(data).encode(), _VERSION), durable=True)

    def _read_manifest(self, path: Path) -> None:
        data: dict[str, Any] = json.loads(unseal(path.read_bytes(), _VERSION))
        if data["kind"] != self._kind.value:
            raise ValueError(f"it has keys of kind {data['kind']}")
        self._files = FileNumbers.load(self._folder, data["files"])
        self._runs = [
            runs.open_run(self._folder, r["name"], self._kind, r["rows"], r["capacity"], r["crc32"])
            for r in data["runs"]
        ]
        self._durable = {r.name for r in self._runs}
        self._next_run = data["nextRun"]
        self._snapshot_id = data["snapshotId"]
        self.seed = bytes.fromhex(data["seed"])

    def _remove_leftovers(self) -> None:
        """Remove what the manifest does not name; nothing else may be in the folder."""
        known = {_MANIFEST, self._files.log_name, *(r.name for r in self._runs)}
        for path in self._folder.iterdir():
            if path.name not in known:
                path.unlink()
