"""Catching up after an outage, compared with capture alone and pg_recvlogical, all on the same WAL.

Each number of cores has a pipeline of its own, and slots of its own for the two others. All are made before the
updates, so each of them reads the same WAL later, alone and in turns. The cores bound the engine, capture alone and
pg_recvlogical, but no server. CPU is that of the engine's process, of its other processes, and of the source's server.
The rate counts from the first answer of the started engine until every table has every update. Usage::

    python -m benchmarks.catchup [--tables 8] [--changes 400000] [--cores 1 2] [--destination ducklake]
        [--transaction 100] [--other ANOTHER_CHECKOUT/engine]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import yaml
from benchmarks.capture import COLUMNS, PUBLICATION, VALUES, capture, recvlogical
from benchmarks.measure import Meter, Usage, table
from benchmarks.tables import connection, destination, postmaster

from levada.local.postgres import EmbeddedPostgres
from levada.runtime.host.work_dir import running_progress
from levada.values import Lsn

_PATIENCE_S = 1800.0
_SLOTS = {"max_replication_slots": "60", "max_wal_senders": "60"}
_TICKS = os.sysconf("SC_CLK_TCK")
_FRESHNESS_S = 2


@dataclass(frozen=True, slots=True)
class Servers:
    """The source, and the server of a catalog."""

    source: EmbeddedPostgres
    target: EmbeddedPostgres


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A pipeline in a folder of its own. ``code`` is the folder of its engine's code, None for this checkout's."""

    name: str
    cores: int
    folder: Path
    code: Path | None

    def write_manifest(self, servers: Servers, kind: str) -> None:
        """Write the manifest and its secret."""
        (self.folder / "secrets" / "source").mkdir(parents=True)
        where = destination(kind, self.folder, servers.target)
        if kind == "ducklake":
            where["ducklake"]["catalog"]["schema"] = self.name
        spec = {
            "source": {**connection(servers.source), "credentialsSecretRef": {"name": "source"}},
            "tables": {"include": [{"schema": "public", "name": "*"}]},
            "freshnessSeconds": _FRESHNESS_S,
            "destination": where,
            "staging": {"uri": f"file://{self.folder}/staging"},
        }
        body = {"apiVersion": "levada.dev/v1alpha1", "kind": "Pipeline", "metadata": {"name": self.name}, "spec": spec}
        (self.folder / "pipeline.yaml").write_text(yaml.safe_dump(body))
        (self.folder / "secrets" / "source" / "username").write_text("postgres")
        (self.folder / "secrets" / "source" / "password").write_text("")

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        """Run the engine for the time of the block, on its cores."""
        options = ["--secrets", str(self.folder / "secrets"), "--work-dir", str(self.folder / "work")]
        command = [sys.executable, "-m", "levada", "run", str(self.folder / "pipeline.yaml"), *options]
        environment = dict(os.environ)
        if self.code is not None:
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(self.code), environment.get("PYTHONPATH"))))
        with (self.folder / "engine.log").open("ab") as log, on_cores(self.cores):
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            yield process
        finally:
            process.terminate()
            process.wait()

    def wait(self, process: subprocess.Popen[bytes], tables: int, target: Lsn | None) -> None:
        """Wait until every table has every change below ``target``, with None until the engine answers."""
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline and process.poll() is None:
            seen = running_progress(self.folder / "work")
            if seen is not None and (target is None or (len(seen.tables) == tables and seen.has_reached(target))):
                return
            time.sleep(0.1)
        raise SystemExit((self.folder / "engine.log").read_text()[-4000:])

    def copied(self, servers: Servers, kind: str, tables: int) -> Pipeline:
        """Copy all tables, and stop."""
        self.write_manifest(servers, kind)
        with self.running() as process:
            self.wait(process, tables, Lsn(0))
        return self

    def caught_up(self, servers: Servers, tables: int, target: Lsn) -> CaughtUp:
        """Start the engine again, and wait for all changes."""
        with self.running() as process:
            self.wait(process, tables, None)
            with Meter(postmaster(servers.source)) as source, Meter(process.pid) as engine:
                before = own_cpu(process.pid)
                self.wait(process, tables, target)
                own = own_cpu(process.pid) - before
        return CaughtUp(engine.usage, own, source.usage.cpu)


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """The cost of catching up. ``process`` has the CPU seconds of the engine's own process, a part of ``engine``."""

    engine: Usage
    process: float
    source: float


@contextmanager
def on_cores(cores: int) -> Iterator[None]:
    """Let this thread, and what it starts in the block, use so many cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:cores])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def own_cpu(pid: int) -> float:
    """Return the CPU seconds of a process without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def fill(server: EmbeddedPostgres, tables: int, rows: int) -> None:
    """Make the tables, and a publication of them for the other readers."""
    with psycopg.connect(server.uri(), autocommit=True) as c:
        for n in range(tables):
            c.execute(f"CREATE TABLE orders_{n} ({COLUMNS})")
            c.execute(f"INSERT INTO orders_{n} SELECT {VALUES} FROM generate_series(1, {rows}) g")
        c.execute("VACUUM (FREEZE, ANALYZE)")
        names = ", ".join(f"orders_{n}" for n in range(tables))
        c.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE {names}")


def update(server: EmbeddedPostgres, slots: Sequence[str], tables: int, rows: int, changes: int, size: int) -> Lsn:
    """Make the slots, then the updates, in transactions of ``size`` rows of one table. Return the LSN of their end."""
    loop = f"""DO $$ BEGIN FOR t IN 0..{changes // size - 1} LOOP
        EXECUTE format('UPDATE orders_%s SET n = n + 1, ts = now() WHERE id > %s AND id <= %s', t % {tables},
            (t / {tables} * {size}) % {rows}, (t / {tables} * {size}) % {rows} + {size});
        COMMIT; END LOOP; END $$"""
    with psycopg.connect(server.uri(), autocommit=True) as c:
        for slot in slots:
            c.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])
        c.execute(loop)
        c.execute("CHECKPOINT")
        [(end,)] = c.execute("SELECT pg_current_wal_insert_lsn()::text").fetchall()
        # Something after the end, so that a reader that stops there sees that it has passed.
        c.execute("SELECT pg_logical_emit_message(false, 'end', '', true)")
        return Lsn.parse(end)


@dataclass(frozen=True, slots=True)
class Backlog:
    """The updates that each reader gets, up to ``end``. ``kind`` is that of the destination."""

    servers: Servers
    folder: Path
    kind: str
    tables: int
    changes: int
    end: Lsn

    def read(self, turn: int, cores: int, pipelines: Sequence[Pipeline]) -> Iterator[Sequence[object]]:
        """Yield a line for each reader, one after another."""
        source, per = self.servers.source, 1e6 / self.changes
        with on_cores(cores):
            alone = capture(source, self.folder / f"alone_{turn}", f"capture_{turn}", self.end, self.changes)
            received = recvlogical(source, f"recvlogical_{turn}", self.end)

        def rates(wall: float) -> tuple[float, float, float]:
            return self.changes / wall / 1e3, alone.wall_s / wall, received.wall_s / wall

        for name, run in (("capture alone", alone), ("pg_recvlogical", received)):
            yield cores, name, *rates(run.wall_s), run.cpu_s * per, "", "", "", ""
        for pipeline in pipelines:
            found = pipeline.caught_up(self.servers, self.tables, self.end)
            engine, workers = found.process, found.engine.cpu - found.process
            costs = (found.engine.cpu * per, engine * per, workers * per, found.source * per)
            name = pipeline.name.partition("-")[0]
            yield cores, name, *rates(found.engine.wall), *costs, round(found.engine.peak_rss / 1e6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=8)
    parser.add_argument("--changes", type=int, default=400_000, help="updates, over all tables")
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--destination", choices=["ducklake", "iceberg", "postgres"], default="ducklake")
    parser.add_argument("--transaction", type=int, default=100, help="updates in a transaction, all of one table")
    parser.add_argument("--other", type=Path, help="the folder of another engine's code, which is measured too")
    options = parser.parse_args()
    # Each row is updated twice, in two passes.
    size, tables, kind = options.transaction, options.tables, options.destination
    rows = max(1, options.changes // tables // size // 2) * size
    changes = rows * tables * 2
    codes = {"engine": None} | ({"other": options.other.resolve()} if options.other else {})
    turns = list(enumerate(n for n in options.cores if n <= len(os.sched_getaffinity(0))))
    with (
        tempfile.TemporaryDirectory() as made,
        EmbeddedPostgres(Path(made) / "source", settings=_SLOTS) as source,
        EmbeddedPostgres(Path(made) / "target") as target,
    ):
        folder, servers = Path(made), Servers(source, target)
        fill(source, tables, rows)
        pipelines = [
            [
                Pipeline(f"{name}-{turn}", n, folder / f"{name}-{turn}", code).copied(servers, kind, tables)
                # The first one reads the WAL from a colder cache, so they take turns in that.
                for name, code in list(codes.items())[:: -1 if turn % 2 else 1]
            ]
            for turn, n in turns
        ]
        slots = [f"{reader}_{turn}" for turn, _ in turns for reader in ("capture", "recvlogical")]
        end = update(source, slots, tables, rows, changes, size)
        print(
            f"{changes} updates of {tables} tables, {kind}, in transactions of {size}. This machine has"
            f" {os.cpu_count()} cores, {len(os.sched_getaffinity(0))} of them for this process",
            flush=True,
        )
        backlog, lines = Backlog(servers, folder, kind, tables, changes, end), []
        for turn, n in turns:
            for line in backlog.read(turn, n, pipelines[turn]):
                print(*line, flush=True)
                lines.append(line)
    columns = ("k/s", "of capture", "of pg_recvlogical", "CPU s/M", "engine", "workers", "source", "MB")
    print(table(("cores", "reader", *columns), lines))


if __name__ == "__main__":
    main()
