"""The cost of `levada verify` on a large table during a steady stream, in CPU seconds of the engine and of the source.

``levada run`` as a process of its own. First changes are written for a while without a verification, then during one.
What both sides use beyond the first rate is the cost of the verification. The same table is then read by others: a
``SELECT md5(t::text)`` at the source, and a full read of the Iceberg table by Spark. Usage::

    python -m benchmarks.verify [--rows 5000000] [--rate 1000] [--seconds 60]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psycopg
from benchmarks.freshness import Written, engine, trailing, until_applied, write, write_manifest
from benchmarks.initial_copy import COLUMNS, ROWS
from benchmarks.measure import Meter, Usage, table

from levada.local.postgres import EmbeddedPostgres
from levada.runtime.host.engine_api import VERIFICATIONS, EngineApi, EngineWork
from levada.runtime.host.work_dir import running_address

_TABLE = "orders_0"
_WARM_UP_S = 15.0
_FRESHNESS_S = 2
_PER_TRANSACTION = 10
_PART_S = 2.0
_READ = """
import sys
from levada.destinations.iceberg import IcebergDestination as kind
from levada.runtime.resources.spark import spark_session
folder, name = sys.argv[1:]
spark = spark_session("read", cores=2, defaults=kind.spark_conf(None), jars=kind.jars())
spark.conf.set("spark.sql.catalog.lake", "org.apache.iceberg.spark.SparkCatalog")
spark.conf.set("spark.sql.catalog.lake.type", "hadoop")
spark.conf.set("spark.sql.catalog.lake.warehouse", f"file://{folder}/lake")
read = f"SELECT sum(CAST(xxhash64(*) AS decimal(20))), count(*) FROM lake.bench.{name}"
print("ready", flush=True)
sys.stdin.readline()
spark.sql(read).collect()
print("done", flush=True)
sys.stdin.readline()
"""


@dataclass(frozen=True, slots=True)
class Load:
    """A stretch of time under changes: the CPU of engine and source, and the seconds by which each commit trailed."""

    wall: float
    engine: float
    source: float
    written: Sequence[Written]


class Writer:
    """Writes changes at an even rate, in parts, until it is stopped."""

    def __init__(self, server: EmbeddedPostgres, rate: int, first: int) -> None:
        self._server, self._rate, self._next = server, rate, first
        self._stop = threading.Event()
        self.written: list[Written] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            found = write(self._server, [_TABLE], self._rate, _PER_TRANSACTION, _PART_S, self._next)
            self._next += 2 * len(found)
            self.written += found

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def postmaster(server: EmbeddedPostgres) -> int:
    return int((server.data / "postmaster.pid").read_text().splitlines()[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--rate", type=int, default=1000, help="changes a second")
    parser.add_argument("--seconds", type=float, default=60, help="of changes without a verification")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as made, EmbeddedPostgres(Path(made) / "postgres") as server:
        folder = Path(made)
        with psycopg.connect(server.uri(), autocommit=True) as c:
            c.execute(f"CREATE TABLE {_TABLE} ({COLUMNS})")
            c.execute(ROWS.replace("INTO orders", f"INTO {_TABLE}").format(options.rows))
            c.execute(f"VACUUM (FREEZE, ANALYZE) {_TABLE}")
        with engine(folder, write_manifest(folder, server, _FRESHNESS_S)) as process:
            until_applied(folder, process, 1, 0)
            plain, verified, whole = loads(folder, server, process.pid, options.rows, options.rate, options.seconds)
            sampled = verification(folder, server, process.pid, 0.01)
            until_applied(folder, process, 1, verified.written[-1].lsn)
        trailed = [np.percentile(trailing(folder, load.written), [50, 95, 100]) for load in (plain, verified)]
        scan = source_scan(server)
        read = spark_read(folder)
    report(options.rows, plain, verified, whole, sampled, trailed, scan, read)


def loads(
    folder: Path, server: EmbeddedPostgres, pid: int, rows: int, rate: int, seconds: float
) -> tuple[Load, Load, tuple[Usage, Usage]]:
    """Return the load without and with a verification, and a verification without changes afterwards."""
    writer = Writer(server, rate, rows + 1)
    time.sleep(_WARM_UP_S)
    begin = len(writer.written)
    with Meter(pid) as own, Meter(postmaster(server)) as source:
        time.sleep(seconds)
    plain = Load(own.usage.wall, own.usage.cpu, source.usage.cpu, writer.written[begin:])
    begin = len(writer.written)
    own_usage, source_usage = verification(folder, server, pid, 1.0)
    verified = Load(own_usage.wall, own_usage.cpu, source_usage.cpu, writer.written[begin:])
    writer.stop()
    time.sleep(2 * _FRESHNESS_S)
    return plain, verified, verification(folder, server, pid, 1.0)


def verification(folder: Path, server: EmbeddedPostgres, pid: int, sample: float) -> tuple[Usage, Usage]:
    """Verify the table. Return what engine and source used meanwhile."""
    address = running_address(folder / "work")
    assert address is not None
    client = EngineWork(EngineApi(address, {}), VERIFICATIONS)
    with Meter(pid) as own, Meter(postmaster(server)) as source:
        number = client.start({"tables": [f"public.{_TABLE}"], "sample": sample})
        while not (state := client.state(number))["finished"]:
            time.sleep(0.2)
    [result] = state["tables"]
    if not result.get("equal"):
        raise SystemExit(f"not equal: {result}")
    return own.usage, source.usage


def source_scan(server: EmbeddedPostgres) -> Usage:
    """Return what PostgreSQL uses for the MD5 of each row's text, on one connection."""
    with psycopg.connect(server.uri(), autocommit=True) as c:
        c.execute("SET max_parallel_workers_per_gather = 0")
        with Meter(postmaster(server)) as meter:
            c.execute(f"SELECT count(md5(t::text)) FROM {_TABLE} t")
    return meter.usage


def spark_read(folder: Path) -> Usage:
    """Return what Spark uses to read all columns of the Iceberg table, on two cores."""
    command = [sys.executable, "-c", _READ, str(folder), _TABLE]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        while process.stdout.readline().strip() not in ("ready", ""):
            pass
        with Meter(process.pid) as meter:
            process.stdin.write("\n")
            process.stdin.flush()
            while process.stdout.readline().strip() not in ("done", ""):
                pass
        process.stdin.close()
    return meter.usage


def report(
    rows: int,
    plain: Load,
    verified: Load,
    whole: tuple[Usage, Usage],
    sampled: tuple[Usage, Usage],
    trailed: Sequence[np.ndarray],
    scan: Usage,
    read: Usage,
) -> None:
    """Print the figures."""
    own = verified.engine - plain.engine * verified.wall / plain.wall
    source = verified.source - plain.source * verified.wall / plain.wall
    million = rows / 1e6
    print(
        table(
            ("", "wall s", "engine CPU s", "source CPU s", "engine s/M", "source s/M"),
            [
                ("verify during changes, beyond them", verified.wall, own, source, own / million, source / million),
                *(
                    (name, a.wall, a.cpu, b.cpu, a.cpu / million, b.cpu / million)
                    for name, (a, b) in {
                        "verify without changes": whole,
                        "sample of 1%, without changes": sampled,
                    }.items()
                ),
                ("SELECT md5(t::text)", scan.wall, "", scan.cpu, "", scan.cpu / million),
                ("full read by Spark", read.wall, read.cpu, "", read.cpu / million, ""),
            ],
        )
    )
    print()
    print(
        table(
            ("", "commits", "p50 s", "p95 s", "worst s", "engine, of a core", "source, of a core"),
            [
                (name, len(load.written), *map(float, seconds), load.engine / load.wall, load.source / load.wall)
                for name, load, seconds in zip(
                    ("changes alone", "during verify"), (plain, verified), trailed, strict=True
                )
            ],
        )
    )
    print(f"\nratio to md5 scan: {source / scan.cpu:.2f}, ratio to Spark's read: {own / read.cpu:.2f}")


if __name__ == "__main__":
    main()
