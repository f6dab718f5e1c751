"""The delay of the lake behind its source under a steady stream, and the memory of the engine meanwhile.

``levada run`` is a process of its own. A writer commits small transactions at an even rate, and notes the position of
the WAL and the time after each. Every snapshot of a table has its watermark and the time of its commit. The two give
exactly, and without frequent reads, when each commit was visible in Iceberg. Usage::

    python -m benchmarks.freshness [--rate 1000] [--tables 5] [--seconds 300] [--freshness 2]

Many small tables::

    python -m benchmarks.freshness --tables 200 --rate 300 --freshness 10
    python -m benchmarks.freshness --tables 1000 --rate 200 --freshness 30 --transaction 1
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psycopg
import yaml
from benchmarks.initial_copy import COLUMNS, ROWS
from benchmarks.measure import Meter, Usage, memory_bytes, table
from pyiceberg.table import StaticTable

from levada.local.postgres import EmbeddedPostgres
from levada.runtime.host.work_dir import running_progress
from levada.values import Lsn

_MOST_ROWS = 100_000
_ALL_ROWS = 500_000
"""The rows of a table before the changes, and of all tables together."""
_WARM_UP_S = 15.0


@dataclass(frozen=True, slots=True)
class Written:
    """One commit: seconds of the Unix clock right after it, and the end of the WAL then."""

    table: str
    at: float
    lsn: int


def names(tables: int) -> list[str]:
    return [f"orders_{n}" for n in range(tables)]


def first_rows(tables: Sequence[str]) -> int:
    return min(_MOST_ROWS, _ALL_ROWS // len(tables))


def fill(server: EmbeddedPostgres, tables: Sequence[str]) -> None:
    with psycopg.connect(server.uri(), autocommit=True) as c:
        for name in tables:
            c.execute(f"CREATE TABLE {name} ({COLUMNS})")
            c.execute(ROWS.replace("INTO orders", f"INTO {name}").format(first_rows(tables)))


def write_manifest(folder: Path, server: EmbeddedPostgres, freshness_s: int) -> Path:
    spec = {
        "source": {
            "host": "127.0.0.1",
            "port": server.port,
            "database": "postgres",
            "credentialsSecretRef": {"name": "source"},
            "tls": {"mode": "Disable"},
        },
        "tables": {"include": [{"schema": "public", "name": "*"}]},
        "freshnessSeconds": freshness_s,
        "destination": {
            "iceberg": {"catalog": {"type": "Hadoop", "warehouse": f"file://{folder}/lake"}, "namespace": "bench"}
        },
        "staging": {"uri": f"file://{folder}/staging"},
    }
    manifest = {"apiVersion": "levada.dev/v1alpha1", "kind": "Pipeline", "metadata": {"name": "bench"}, "spec": spec}
    (folder / "pipeline.yaml").write_text(yaml.safe_dump(manifest))
    secret = folder / "secrets" / "source"
    secret.mkdir(parents=True)
    (secret / "username").write_text("postgres")
    (secret / "password").write_text("")
    return folder / "pipeline.yaml"


@contextmanager
def engine(folder: Path, manifest: Path) -> Iterator[subprocess.Popen[bytes]]:
    options = ["--secrets", str(folder / "secrets"), "--work-dir", str(folder / "work")]
    command = [sys.executable, "-m", "levada", "run", str(manifest), *options]
    with (folder / "engine.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield process
        finally:
            process.terminate()


def until_applied(
    folder: Path, process: subprocess.Popen[bytes], tables: int, target: int, *, patience_s: float = 900
) -> None:
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline and process.poll() is None:
        progress = running_progress(folder / "work")
        if progress is not None and len(progress.tables) == tables and progress.has_reached(Lsn(target)):
            return
        time.sleep(0.2)
    raise SystemExit((folder / "engine.log").read_text()[-4000:])


def write(
    server: EmbeddedPostgres, tables: Sequence[str], rate: int, size: int, seconds: float, first: int
) -> list[Written]:
    """Commit transactions of ``size`` changes (20 % inserts, 10 % deletes, otherwise updates) at an even rate.

    ``first``: the rows that it inserts have keys from there on.
    """
    written = []
    pause = size / rate
    inserts, deletes = size // 5, size // 10
    random = np.random.default_rng(1)
    with psycopg.connect(server.uri(), autocommit=True, prepare_threshold=1) as c:
        began = time.monotonic()
        for turn in range(int(seconds / pause)):
            name = tables[turn % len(tables)]
            ids = [int(i) for i in random.integers(1, first_rows(tables), size - inserts)]
            new = first + inserts * turn
            with c.transaction():
                if inserts:
                    c.execute(
                        f"INSERT INTO {name} SELECT g, 1, 'new', md5(g::text), g / 8.0, now(), true, 1,"
                        " gen_random_uuid(), '{}' FROM generate_series(%s::bigint, %s::bigint) g",
                        [new, new + inserts - 1],
                    )
                c.execute(f"UPDATE {name} SET i = i + 1, ts = now() WHERE id = ANY(%s)", [ids[deletes:]])
                if deletes:
                    c.execute(f"DELETE FROM {name} WHERE id = ANY(%s)", [ids[:deletes]])
            written.append(Written(name, time.time(), insert_lsn(c)))
            time.sleep(max(0.0, began + (turn + 1) * pause - time.monotonic()))
    return written


def visible(folder: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the table's marks (LSNs) and when each was committed, in seconds of the Unix clock."""
    metadata = folder / "lake" / "bench" / name / "metadata"
    version = (metadata / "version-hint.text").read_text().strip()
    snapshots = StaticTable.from_metadata(f"file://{metadata}/v{version}.metadata.json").metadata.snapshots
    # A compaction has no mark.
    stamped = [(s, mark) for s in snapshots if s.summary and (mark := s.summary["levada.lsn"])]
    marks = np.array([lsn(mark) for _, mark in stamped], dtype=np.uint64)
    return marks, np.array([s.timestamp_ms / 1000 for s, _ in stamped])


def trailing(folder: Path, written: Sequence[Written]) -> np.ndarray:
    """Return for each commit the seconds until it was visible."""
    found = []
    for name in sorted({w.table for w in written}):
        marks, at = visible(folder, name)
        mine = [w for w in written if w.table == name]
        first = np.searchsorted(marks, np.array([w.lsn for w in mine], dtype=np.uint64))
        # The position noted after a table's last commit may be above its mark, if the server wrote WAL in between.
        known = first < len(at)
        found.append(at[first[known]] - np.array([w.at for w in mine])[known])
    return np.concatenate(found)


def insert_lsn(c: psycopg.Connection[tuple[str]]) -> int:
    row = c.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
    assert row is not None
    return lsn(row[0])


def lsn(text: str) -> int:
    high, low = text.split("/")
    return int(high, 16) << 32 | int(low, 16)


@dataclass(frozen=True, slots=True)
class Stream:
    """The cost of a steady stream: seconds until each commit was visible, and the engine's CPU and memory."""

    changes: int
    commits: int
    seconds: np.ndarray
    usage: Usage
    memory: int


def measured(tables: Sequence[str], rate: int, size: int, seconds: float, freshness_s: int) -> Stream:
    """Copy the tables, and measure the stream that follows. The arguments are those of `write`."""
    with tempfile.TemporaryDirectory() as made, EmbeddedPostgres(Path(made) / "postgres") as server:
        folder = Path(made)
        fill(server, tables)
        with engine(folder, write_manifest(folder, server, freshness_s)) as process:
            until_applied(folder, process, len(tables), 0, patience_s=3600)
            warm = write(server, tables, rate, size, max(_WARM_UP_S, 2.0 * freshness_s), first_rows(tables) + 1)
            with Meter(process.pid) as meter:
                first = first_rows(tables) + 1 + size // 5 * len(warm)
                written = write(server, tables, rate, size, seconds, first)
                memory = memory_bytes(process.pid)
                until_applied(folder, process, len(tables), written[-1].lsn)
            waited = trailing(folder, written)
            commits = sum(int((visible(folder, name)[1] > written[0].at).sum()) for name in tables)
    return Stream(len(written) * size, commits, waited, meter.usage, memory)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=1000, help="changes a second, over all tables")
    parser.add_argument("--tables", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--transaction", type=int, default=10, help="changes in a transaction, all of one table")
    parser.add_argument("--freshness", type=int, default=2, help="the manifest's freshnessSeconds")
    options = parser.parse_args()
    found = measured(names(options.tables), options.rate, options.transaction, options.seconds, options.freshness)
    p50, p95, worst = np.percentile(found.seconds, [50, 95, 100])
    cpu = found.usage.cpu
    print(
        table(
            ("tables", "changes", "a second", "commits", "p50 s", "p95 s", "worst s", "CPU s/M", "of a core", "MB"),
            [(options.tables, found.changes, round(found.changes / options.seconds), found.commits, float(p50),
              float(p95), float(worst), cpu * 1e6 / found.changes, cpu / found.usage.wall, round(found.memory / 1e6))],
        )
    )  # fmt: skip


if __name__ == "__main__":
    main()
