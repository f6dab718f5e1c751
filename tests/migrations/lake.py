"""A reader that counts the rows of tables in the lake for as long as a history is played."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import duckdb
from tests.rigs.engine import Engine
from tests.rigs.equality import open_lake_table
from tests.rigs.waiting import until
from tests.servers.ducklake import DuckLake

_EACH_ROUND = 8


class Counter(Protocol):
    """Counts the rows of a table of the lake."""

    def count(self, place: str) -> int:
        """Return the number of rows of a table by its name at the destination."""


@dataclass(frozen=True, slots=True)
class IcebergCounter:
    """PyIceberg."""

    warehouse: Path

    def count(self, place: str) -> int:
        schema, _, name = place.partition(".")
        folder = self.warehouse / schema / name
        # Hadoop's rename over the file of the newest version removes that first.
        hint = until(lambda: next(folder.glob("metadata/version-hint.text"), None), limit_s=5)
        assert hint is not None
        return open_lake_table(folder).scan().count()


@dataclass(frozen=True, slots=True)
class DuckLakeCounter:
    """DuckDB's own extension."""

    session: duckdb.DuckDBPyConnection

    def count(self, place: str) -> int:
        schema, _, name = place.partition(".")
        found = self.session.execute(f'SELECT count(*) FROM "{schema}"."{name}"').fetchone()
        assert found is not None
        return int(found[0])


@dataclass
class Polled:
    """Numbers of rows that the reader saw, by the table's OID, and reads that failed."""

    seen: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    failures: list[str] = field(default_factory=list)
    reads: int = 0


@contextmanager
def counter(engine: Engine, lake: DuckLake | None) -> Iterator[Counter]:
    """Return the counter of an engine's lake: Iceberg's, or that of a DuckLake."""
    if lake is None:
        yield IcebergCounter(engine.warehouse)
        return
    with lake.duckdb() as session:
        yield DuckLakeCounter(session)


@contextmanager
def polling(engine: Engine, counting: Counter) -> Iterator[Polled]:
    """Poll until the end of the block. A table is read from the first time on at which it was Ready."""
    polled, done = Polled(), threading.Event()
    thread = threading.Thread(target=lambda: _poll(engine, counting, polled, done.is_set), daemon=True)
    thread.start()
    try:
        yield polled
    finally:
        done.set()
        thread.join()


def _poll(engine: Engine, counting: Counter, polled: Polled, done: Callable[[], bool]) -> None:
    ready: set[int] = set()
    rng = random.Random(1)
    while not done():
        before = _places(engine)
        ready |= {oid for oid, table in before.items() if table["phase"] == "Ready"}
        known = sorted(before.keys() & ready)
        counts: dict[int, int | str] = {}
        for oid in rng.sample(known, min(_EACH_ROUND, len(known))):
            try:
                counts[oid] = counting.count(before[oid]["destinationTable"])
            except Exception as error:  # whatever a reader raises, a table of the lake has to be readable
                counts[oid] = f"{type(error).__name__}: {error}"
        after = _places(engine)
        for oid, count in counts.items():
            if oid not in after or after[oid]["destinationTable"] != before[oid]["destinationTable"]:
                continue  # it was dropped or renamed meanwhile
            polled.reads += 1
            if isinstance(count, str):
                polled.failures.append(f"{before[oid]['name']}: {count[:300]}")
            elif not polled.seen[oid] or polled.seen[oid][-1] != count:
                polled.seen[oid].append(count)


def _places(engine: Engine) -> dict[int, dict[str, Any]]:
    progress = engine.progress()
    return {} if progress is None else {t["id"]: t for t in progress["tables"] if t["destinationTable"]}
