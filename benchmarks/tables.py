"""The first copy of many small tables, from the start of ``levada run`` until all are Ready.

The CPU of the source's server is measured apart. A pipeline of one table shows the cost of the start, and is
subtracted from the milliseconds of a table. Usage::

    python -m benchmarks.tables [--tables 10 100 1000] [--rows 200] [--destinations iceberg ducklake postgres]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
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


@dataclass(frozen=True, slots=True)
class Copied:
    """The cost of the first copy of ``tables`` tables, at the engine and at the source's server."""

    tables: int
    engine: Usage
    source: Usage


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


def measured(kind: str, tables: int, rows: int) -> Copied:
    """Copy the tables once."""
    with (
        tempfile.TemporaryDirectory() as made,
        EmbeddedPostgres(Path(made) / "source") as source,
        EmbeddedPostgres(Path(made) / "target") as target,
    ):
        folder = Path(made)
        fill(source, tables, rows)
        manifest = write_manifest(folder, source, target, kind)
        with Meter(postmaster(source)) as at_source, engine(folder, manifest) as process, Meter(process.pid) as own:
            until_ready(folder, process, tables)
    return Copied(tables, own.usage, at_source.usage)


def postmaster(server: EmbeddedPostgres) -> int:
    """Return the PID of the server's first process."""
    return int((server.data / "postmaster.pid").read_text().split()[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--rows", type=int, default=200)
    parser.add_argument("--destinations", nargs="+", default=["iceberg", "ducklake", "postgres"])
    options = parser.parse_args()
    lines = []
    for kind in options.destinations:
        start = measured(kind, 1, options.rows)
        for tables in options.tables:
            found = measured(kind, tables, options.rows)
            own, source = (
                1e3 * (after.cpu - before.cpu) / (tables - 1)
                for after, before in ((found.engine, start.engine), (found.source, start.source))
            )
            lines.append((kind, tables, found.engine.wall, found.engine.cpu, own, found.source.cpu, source))
    print(table(("destination", "tables", "wall s", "CPU s", "ms a table", "CPU s at the source", "ms a table"), lines))


if __name__ == "__main__":
    main()
