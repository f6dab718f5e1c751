"""The first copy of many small tables, from the start of ``levada run`` until all are Ready.

The CPU of the source's server is measured apart. A pipeline of one table shows the cost of the start, and is
subtracted from the milliseconds of a table. With ``--rate``, that many changes a second follow over all tables, and
what each table trails by is read once a second. Usage::

    python -m benchmarks.tables [--tables 10 100 1000] [--rows 200] [--destinations iceberg ducklake postgres]
        [--rate 300] [--seconds 90]
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import yaml
from benchmarks.measure import Meter, Usage, table

from levada.local.postgres import EmbeddedPostgres
from levada.runtime.host.work_dir import running_progress

_PATIENCE_S = 3600.0
_SETTLES_S = 20.0
"""Seconds of a steady stream before it is measured."""


@dataclass(frozen=True, slots=True)
class Work:
    """The tables to copy, and the changes a second that follow for some seconds, none with 0."""

    tables: int
    rows: int
    rate: int = 0
    seconds: int = 0


@dataclass(frozen=True, slots=True)
class Copied:
    """The cost of the first copy of ``tables`` tables, at the engine and at the source's server."""

    tables: int
    engine: Usage
    source: Usage
    stream: Streamed | None = None


@dataclass(frozen=True, slots=True)
class Streamed:
    """A steady stream over all tables: its cost, and the seconds by which each table trailed, in samples, ascending."""

    rate: float
    engine: Usage
    target: Usage
    lags: Sequence[float]

    def figures(self) -> Sequence[float]:
        """Return the rate, the seconds at three quantiles, the cores of both sides, and the engine's memory in MB."""
        trailing = [self.lags[min(int(len(self.lags) * q), len(self.lags) - 1)] for q in (0.5, 0.95, 1)]
        cores = [usage.cpu / usage.wall for usage in (self.engine, self.target)]
        return [self.rate, *trailing, *cores, self.engine.peak_rss / 1e6]


def fill(server: EmbeddedPostgres, tables: int, rows: int) -> None:
    """Make the tables, with ``rows`` rows each."""
    with psycopg.connect(server.uri(), autocommit=True) as c:
        for n in range(tables):
            c.execute(f"CREATE TABLE t_{n} (id bigint PRIMARY KEY, i int, t text, f float8, ts timestamptz)")
            c.execute(f"INSERT INTO t_{n} SELECT g, g, md5(g::text), g / 8.0, now() FROM generate_series(1, {rows}) g")
        c.execute("ANALYZE")


def connection(server: EmbeddedPostgres) -> dict[str, Any]:
    """Return the fields of a manifest that name the server."""
    return {"host": "127.0.0.1", "port": server.port, "database": "postgres", "tls": {"mode": "Disable"}}


def destination(kind: str, folder: Path, target: EmbeddedPostgres) -> dict[str, Any]:
    """Return the manifest's ``destination``. ``target`` is the server of DuckLake's catalog and of PostgreSQL."""
    secret = {"name": "source"}
    match kind:
        case "iceberg":
            catalog = {"type": "Hadoop", "warehouse": f"file://{folder}/lake"}
            return {"iceberg": {"catalog": catalog, "namespace": "bench"}}
        case "ducklake":
            catalog = {**connection(target), "schema": "ducklake"}
            return {"ducklake": {"catalog": catalog, "dataPath": f"{folder}/lake", "credentialsSecretRef": secret}}
        case _:
            return {"postgres": {**connection(target), "credentialsSecretRef": secret}}


def write_manifest(folder: Path, source: EmbeddedPostgres, target: EmbeddedPostgres, kind: str) -> Path:
    """Write the manifest and its secret. Return the manifest's path."""
    spec = {
        "source": {**connection(source), "credentialsSecretRef": {"name": "source"}},
        "tables": {"include": [{"schema": "public", "name": "*"}]},
        "destination": destination(kind, folder, target),
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
    """Run ``levada run`` for the time of the block."""
    options = ["--secrets", str(folder / "secrets"), "--work-dir", str(folder / "work")]
    command = [sys.executable, "-m", "levada", "run", str(manifest), *options]
    with (folder / "engine.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield process
        finally:
            process.terminate()


def until_ready(folder: Path, process: subprocess.Popen[bytes], tables: int) -> None:
    """Wait until every table is Ready."""
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline and process.poll() is None:
        progress = running_progress(folder / "work")
        if progress is not None and sum(t.phase == "Ready" for t in progress.tables) == tables:
            return
        time.sleep(0.2)
    raise SystemExit((folder / "engine.log").read_text()[-4000:])


@contextmanager
def writing(server: EmbeddedPostgres, tables: int, rows: int, rate: int) -> Iterator[list[int]]:
    """Change rows of random tables for the time of the block. The list has the number of the changes."""
    stopped, written = threading.Event(), [0]

    def write() -> None:
        chosen, begin = random.Random(1), time.monotonic()
        with psycopg.connect(server.uri(), autocommit=True) as c:
            while not stopped.wait(max(0.0, begin + written[0] / rate - time.monotonic())):
                c.execute(f"UPDATE t_{chosen.randrange(tables)} SET i = i + 1 WHERE id = %s", [chosen.randint(1, rows)])
                written[0] += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield written
    finally:
        stopped.set()
        thread.join()


def streamed(folder: Path, process: int, source: EmbeddedPostgres, target: int, of: Work) -> Streamed:
    """Change the tables at a steady rate. ``process`` and ``target`` are PIDs."""
    with writing(source, of.tables, of.rows, of.rate) as written:
        time.sleep(_SETTLES_S)
        before, lags = written[0], list[float]()
        with Meter(process) as engine, Meter(target) as at_target:
            for _ in range(of.seconds):
                time.sleep(1)
                progress = running_progress(folder / "work")
                lags += [] if progress is None else [t.lag_seconds or 0.0 for t in progress.tables]
        rate = (written[0] - before) / engine.usage.wall
    return Streamed(rate, engine.usage, at_target.usage, sorted(lags))


def measured(kind: str, work: Work) -> Copied:
    """Copy the tables once, and stream changes."""
    with (
        tempfile.TemporaryDirectory() as made,
        EmbeddedPostgres(Path(made) / "source") as source,
        EmbeddedPostgres(Path(made) / "target") as target,
    ):
        folder = Path(made)
        fill(source, work.tables, work.rows)
        manifest = write_manifest(folder, source, target, kind)
        with engine(folder, manifest) as process:
            with Meter(postmaster(source)) as at_source, Meter(process.pid) as own:
                until_ready(folder, process, work.tables)
            stream = streamed(folder, process.pid, source, postmaster(target), work) if work.rate else None
    return Copied(work.tables, own.usage, at_source.usage, stream)


def postmaster(server: EmbeddedPostgres) -> int:
    """Return the PID of the server's first process."""
    return int((server.data / "postmaster.pid").read_text().split()[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--destinations", nargs="+", default=["iceberg", "ducklake", "postgres"])
    parser.add_argument("--rate", type=int, default=0)
    parser.add_argument("--seconds", type=int, default=90)
    options = parser.parse_args()
    lines, streams = [], []
    for kind in options.destinations:
        start = measured(kind, Work(1, options.rows))
        for tables in options.tables:
            found = measured(kind, Work(tables, options.rows, options.rate, options.seconds))
            own, source = (
                1e3 * (after.cpu - before.cpu) / (tables - 1)
                for after, before in ((found.engine, start.engine), (found.source, start.source))
            )
            lines.append((kind, tables, found.engine.wall, found.engine.cpu, own, found.source.cpu, source))
            if found.stream is not None:
                streams.append((kind, tables, *found.stream.figures()))
    print(table(("destination", "tables", "wall s", "CPU s", "ms a table", "CPU s at the source", "ms a table"), lines))
    if streams:
        trailing = ("trails by s, p50", "p95", "worst")
        print(table(("destination", "tables", "changes/s", *trailing, "cores", "at the target", "MB"), streams))


if __name__ == "__main__":
    main()
