"""pgbench on a server that Levada streams, on one that pg_recvlogical streams, and on one that nothing reads.

Each of the three has the same data, and the defaults of PostgreSQL. They are loaded in turns: with all that pgbench can
do, and with half of that rate, because the latency at a limit is that of the queue. Both readers have a slot of
pgoutput with the same options. On a machine with several cores they run on the last one and the servers on the others,
as if they were elsewhere. So the ratios are what reading costs the source. Usage::

    python -m benchmarks.impact [--rounds 5] [--seconds 10] [--clients 8] [--scale 10]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from benchmarks.ddl import newest_programs
from benchmarks.measure import Meter, table
from tests.rigs.database import Database
from tests.rigs.engine import Engine
from tests.rigs.waiting import until

from levada.local.postgres import EmbeddedPostgres, temporary_postgres

KINDS = ("nothing", "pg_recvlogical", "Levada")
SLOT = "benchmark"
# Defaults of PostgreSQL that the embedded server does not have.
USUAL = {
    "shared_buffers": "128MB",
    "max_wal_size": "1GB",
    "checkpoint_timeout": "5min",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "autovacuum_naptime": "1min",
}


@dataclass(frozen=True)
class Round:
    """A round as pgbench reports it, with the CPU of the server and of the reader for 1,000 transactions."""

    tps: float
    p99_ms: float
    server_ms: float
    reader_ms: float


@dataclass
class Load:
    """A server under pgbench, with its reader: a process, or None."""

    server: EmbeddedPostgres
    folder: Path
    reader: subprocess.Popen[bytes] | None = None

    def run(self, options: argparse.Namespace, rate: float | None) -> Round:
        """Run pgbench once. Then wait until the reader has acknowledged all."""
        with psycopg.connect(self.server.uri(), autocommit=True) as c:
            c.execute("CHECKPOINT")
        limit = [f"--rate={rate:.0f}"] if rate is not None else []
        command = [
            str(self.server.bin / "pgbench"), "--no-vacuum", "--protocol=prepared", f"--client={options.clients}",
            f"--time={options.seconds}", "--log", f"--log-prefix={self.folder / 'log'}", *limit, self.server.uri(),
        ]  # fmt: skip
        postmaster = int((self.server.data / "postmaster.pid").read_text().split()[0])
        with Meter(postmaster) as server, Meter(self.reader.pid if self.reader else os.getpid()) as reader:
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        latencies = []
        for log in self.folder.glob("log.*"):
            latencies += [int(line.split()[2]) / 1000 for line in log.read_text().splitlines()]
            log.unlink()
        if self.reader is not None:
            self.wait_read()
        done = len(latencies)
        p99 = statistics.quantiles(latencies, n=100)[98]
        reading = reader.usage.cpu if self.reader is not None else 0.0
        return Round(done / options.seconds, p99, server.usage.cpu / done * 1e6, reading / done * 1e6)

    def wait_read(self) -> None:
        """Wait until all that is committed now is acknowledged."""
        with psycopg.connect(self.server.uri(), autocommit=True) as c:
            [(end,)] = c.execute("SELECT pg_current_wal_flush_lsn()::text").fetchall()
            # A reader acknowledges only what it receives.
            c.execute("SELECT pg_logical_emit_message(true, 'end', '')")
            behind = "SELECT FROM pg_replication_slots WHERE confirmed_flush_lsn < %s AND NOT temporary"
            until(lambda: not c.execute(behind, [end]).fetchall())


@contextmanager
def load(folder: Path, scale: int) -> Iterator[Load]:
    """Run a server with pgbench's tables. That of the history has no key, and so FULL identity."""
    folder.mkdir()
    with EmbeddedPostgres(folder / "data", programs=newest_programs(), settings=USUAL) as server:
        command = [str(server.bin / "pgbench"), "--initialize", "--quiet", f"--scale={scale}", server.uri()]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with psycopg.connect(server.uri(), autocommit=True) as c:
            c.execute("ALTER TABLE pgbench_history REPLICA IDENTITY FULL")
        yield Load(server, folder)


@contextmanager
def recvlogical(loaded: Load, pinned: list[str]) -> Iterator[None]:
    """Stream the server's changes to /dev/null."""
    with psycopg.connect(loaded.server.uri(), autocommit=True) as c:
        c.execute(f"CREATE PUBLICATION {SLOT} FOR ALL TABLES".encode())
        c.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [SLOT])
    command = [
        *pinned, str(loaded.server.bin / "pg_recvlogical"), "-d", loaded.server.uri(), "--slot", SLOT, "--start", "-f",
        os.devnull, "-o", "proto_version=1", "-o", f"publication_names={SLOT}", "-o", "messages=true",
        "--status-interval=1",
    ]  # fmt: skip
    loaded.reader = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        loaded.reader.kill()
        loaded.reader.wait()


@contextmanager
def levada(loaded: Load, target: EmbeddedPostgres, pinned: list[str]) -> Iterator[None]:
    """Replicate all tables into another server, with the usual settings of a pipeline."""
    engine = Engine(Database(loaded.server, "postgres"), loaded.folder)
    place = {"host": "127.0.0.1", "port": target.port, "database": "postgres", "tls": {"mode": "Disable"}}
    engine.spec |= {
        "destination": {"postgres": {**place, "credentialsSecretRef": {"name": "pg"}}},
        "batch": {},
        "freshnessSeconds": 10,
        "retries": {},
    }
    engine.write_manifest()
    engine.start(*pinned)
    loaded.reader = engine.process
    try:
        engine.wait_caught_up()
        yield
    finally:
        engine.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--scale", type=int, default=10)
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    last = {cores[-1]} if len(cores) > 1 else set(cores)
    pinned = ["taskset", "--cpu-list", str(cores[-1])] if len(cores) > 1 else []
    with tempfile.TemporaryDirectory(prefix="levada-impact-") as name, ExitStack() as held:
        folder = Path(name)
        folder.chmod(0o755)
        os.sched_setaffinity(0, last)
        target = held.enter_context(temporary_postgres())
        os.sched_setaffinity(0, set(cores) - last or last)
        loads = {kind: held.enter_context(load(folder / kind, options.scale)) for kind in KINDS}
        held.enter_context(recvlogical(loads["pg_recvlogical"], pinned))
        held.enter_context(levada(loads["Levada"], target, pinned))
        rate = measure(loads, options, None)
        measure(loads, options, rate / 2)


def measure(loads: dict[str, Load], options: argparse.Namespace, rate: float | None) -> float:
    """Print the medians of the rounds, with their ratios to pg_recvlogical. Return the TPS that nothing reads."""
    rounds: dict[str, list[Round]] = {kind: [] for kind in KINDS}
    for turn in range(options.rounds):
        # No kind is always the first.
        for kind in KINDS[turn % 3 :] + KINDS[: turn % 3]:
            rounds[kind].append(loads[kind].run(options, rate))
    tps, p99 = ([[getattr(r, f) for r in rounds[kind]] for kind in KINDS] for f in ("tps", "p99_ms"))
    rows = []
    for number, kind in enumerate(KINDS):
        # Ratios of one turn, so that what else the machine does at that time counts for both.
        ratio = statistics.median(a / b for a, b in zip(tps[number], tps[1], strict=True))
        slower = statistics.median(a / b for a, b in zip(p99[number], p99[1], strict=True))
        costs = [statistics.median(getattr(r, f) for r in rounds[kind]) for f in ("server_ms", "reader_ms")]
        rows.append((kind, statistics.median(tps[number]), ratio, statistics.median(p99[number]), slower, *costs))
    print("\nAs fast as it can" if rate is None else f"\n{rate:.0f} transactions a second")
    headers = ["read by", "TPS", "ratio", "p99 ms", "ratio", "server, CPU ms per 1,000", "reader, CPU ms per 1,000"]
    print(table(headers, rows), flush=True)
    return statistics.median(tps[0])


if __name__ == "__main__":
    main()
