"""The key index next to LMDB, SQLite and DuckDB: build it, look up a batch of random keys, and replace that batch.

Each runs in a process of its own, on the same 128-bit keys, and commits durably. Prints CPU seconds, wall seconds and
the size on disk. LMDB and SQLite get their keys sorted, which is their best case. Usage::

    pip install lmdb duckdb
    python -m benchmarks.key_index [--keys 5000000] [--batch 100000]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import sqlite3
import tempfile
import time
from abc import ABC, abstractmethod
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from levada.destinations.key_index.index import KeyIndex
from levada.destinations.keys import KeyKind, Keys

Halves = tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]
FILE_ROWS = 500_000


class Index(ABC):
    """An index from a key of 128 bits to a number, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def build(self, keys: Halves, values: npt.NDArray[np.int64]) -> None:
        """Store all keys, durably."""

    @abstractmethod
    def look_up(self, keys: Halves) -> int:
        """Return the number of keys that were found, in the order of the keys."""

    @abstractmethod
    def replace(self, keys: Halves, values: npt.NDArray[np.int64]) -> None:
        """Look the keys up, and give them other values, durably."""


class Levada(Index):
    def build(self, keys: Halves, values: npt.NDArray[np.int64]) -> None:
        self.index = KeyIndex.open(self.folder / "index", KeyKind.HASH)
        for number, first in enumerate(range(0, len(values), FILE_ROWS)):
            rows = slice(first, first + FILE_ROWS)
            self.index.add_file(f"file-{number}", Keys(KeyKind.HASH, keys[0][rows], keys[1][rows]))
        self.index.commit(1)

    def look_up(self, keys: Halves) -> int:
        return int(self.index.lookup(Keys(KeyKind.HASH, *keys)).found.sum())

    def replace(self, keys: Halves, values: npt.NDArray[np.int64]) -> None:
        encoded = Keys(KeyKind.HASH, *keys)
        self.index.lookup(encoded, forget=True)
        self.index.add_file("file-new", encoded)
        self.index.commit(2)


def _blobs(keys: Halves) -> list[bytes]:
    data = np.column_stack(keys).astype(">u8").tobytes()
    return [data[i : i + 16] for i in range(0, len(data), 16)]


class Lmdb(Index):
    def build(self, keys: Halves, values: npt.NDArray[np.int64]) -> None:
        import lmdb

        self.env = lmdb.open(str(self.folder), map_size=8 << 30)
        order = np.lexsort((keys[1], keys[0]))
        numbers = values[order].tobytes()
        blobs = _blobs((keys[0][order], keys[1][order]))
        with self.env.begin(write=True) as txn:
            items = ((key, numbers[8 * i : 8 * i + 8]) for i, key in enumerate(blobs))
            txn.cursor().putmulti(items, append=True)

    def look_up(self, keys: Halves) -> int:
        with self.env.begin(buffers=True) as txn:
            return len(txn.cursor().getmulti(_blobs(keys)))

    def replace(self, keys: Halves, values: npt.NDArray[np.int64]) -> None:
        self.look_up(keys)
        order = np.lexsort((keys[1], keys[0]))
        numbers = values[order].tobytes()
        with self.env.begin(write=True) as txn:
            blobs = _blobs((keys[0][order], keys[1][order]))
            txn.cursor().putmulti((key, numbers[8 * i : 8 * i + 8]) for i, key in enumerate(blobs))


class Sqlite(Index):
    def build(self, keys: Halves, values: npt.NDArray[np.int64]) -> None:
        self.db = sqlite3.connect(self.folder / "index.sqlite")
        self.db.execute("PRAGMA journal_mode = WAL")
        self.db.execute("CREATE TABLE keys (key BLOB PRIMARY KEY, location INTEGER NOT NULL) WITHOUT ROWID")
        self._put(keys, values)
        self.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def look_up(self, keys: Halves) -> int:
        self.db.execute("CREATE TEMP TABLE IF NOT EXISTS wanted (key BLOB)")
        self.db.execute("DELETE FROM wanted")
        self.db.executemany("INSERT INTO wanted VALUES (?)", ((k,) for k in _blobs(keys)))
        return len(self.db.execute("SELECT location FROM wanted LEFT JOIN keys USING (key)").fetchall())

    def replace(self, keys: Halves, values: npt.NDArray[np.int64]) -> None:
        self.look_up(keys)
        self._put(keys, values)

    def _put(self, keys: Halves, values: npt.NDArray[np.int64]) -> None:
        order = np.lexsort((keys[1], keys[0]))
        rows = zip(_blobs((keys[0][order], keys[1][order])), values[order].tolist(), strict=True)
        with self.db:
            self.db.executemany("INSERT OR REPLACE INTO keys VALUES (?, ?)", rows)


class DuckDb(Index):
    def build(self, keys: Halves, values: npt.NDArray[np.int64]) -> None:
        import duckdb

        self.db = duckdb.connect(str(self.folder / "index.duckdb"), config={"threads": 1})
        self.db.execute("CREATE TABLE keys (high UBIGINT, low UBIGINT, location BIGINT, PRIMARY KEY (high, low))")
        self._put(keys, values)
        self.db.execute("CHECKPOINT")

    def look_up(self, keys: Halves) -> int:
        self.db.register("wanted", pa.table({"n": np.arange(len(keys[0])), "high": keys[0], "low": keys[1]}))
        found = self.db.execute("SELECT location FROM wanted LEFT JOIN keys USING (high, low) ORDER BY n").arrow()
        return int(found.read_all().num_rows if hasattr(found, "read_all") else found.num_rows)

    def replace(self, keys: Halves, values: npt.NDArray[np.int64]) -> None:
        self.look_up(keys)
        self._put(keys, values)

    def _put(self, keys: Halves, values: npt.NDArray[np.int64]) -> None:
        self.db.register("added", pa.table({"high": keys[0], "low": keys[1], "location": values}))
        self.db.execute("INSERT OR REPLACE INTO keys SELECT * FROM added")


KINDS: dict[str, type[Index]] = {"levada": Levada, "LMDB": Lmdb, "SQLite": Sqlite, "DuckDB": DuckDb}


def measure(kind: str, keys: int, batch: int, results: Queue[Any]) -> None:
    """Run one index, and report CPU and wall seconds of each step, the size in bytes and the peak of memory."""
    random = np.random.default_rng(1)
    every = random.integers(0, 2**64, keys, np.uint64), random.integers(0, 2**64, keys, np.uint64)
    numbers = np.arange(keys)
    picked = random.permutation(keys)[:batch]
    some = every[0][picked], every[1][picked]
    steps: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory(prefix="key-index-") as folder:
        index = KINDS[kind](Path(folder))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for step in (
            lambda: index.build(every, numbers),
            lambda: index.look_up(some),
            lambda: index.replace(some, numbers[:batch]),
        ):
            cpu, wall = time.process_time(), time.perf_counter()
            step()
            steps.append((time.process_time() - cpu, time.perf_counter() - wall))
        size = sum(f.stat().st_blocks * 512 for f in Path(folder).rglob("*") if f.is_file())
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    results.put((steps, size, peak * 1024))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=5_000_000)
    parser.add_argument("--batch", type=int, default=100_000)
    options = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    print(f"{options.keys:,} keys, batches of {options.batch:,}, {os.cpu_count()} cores; CPU s (wall s)")
    print(f"{'':8}{'build':>16}{'look up':>16}{'replace':>16}{'disk MB':>10}{'memory MB':>11}")
    for kind in KINDS:
        results: Queue[Any] = spawn.Queue()
        process = spawn.Process(target=measure, args=(kind, options.keys, options.batch, results))
        process.start()
        steps, size, peak = results.get()
        process.join()
        cells = "".join(f"{f'{cpu:.2f} ({wall:.2f})':>16}" for cpu, wall in steps)
        print(f"{kind:8}{cells}{size / 1e6:>10.0f}{peak / 1e6:>11.0f}", flush=True)


if __name__ == "__main__":
    main()
