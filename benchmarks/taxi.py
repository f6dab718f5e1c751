"""The first copy of two tables with the columns of the New York taxi data set, into Iceberg and DuckLake.

The trips of yellow taxis have 19 columns and those of for-hire vehicles 7, as the city publishes them, and a bigint key
before them. Values are random. Of 36 rows 5 are of yellow taxis. CPU and memory are those of all processes of
``levada run``, from its start until both tables are Ready. Pages that processes share count once. The tail is the time
in which fewer connections read than before, up to the end of the last one. psql reads the same tables by as many
connections, each a share of the blocks, and discards them. Usage::

    python -m benchmarks.taxi [--rows 36000000] [--connections 1 2] [--destinations iceberg ducklake]
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import yaml
from benchmarks.measure import Meter, Usage, memory_bytes, table
from benchmarks.tables import engine, until_ready, write_manifest

from levada.local.postgres import EmbeddedPostgres

_YELLOW_SHARE = 5 / 36
_SAMPLE_S = 0.1
_MEMORY_EVERY = 5
"""The samples from one of the memory to the next, which takes longer."""

_TABLES = {
    "yellow": """
        SELECT g::bigint AS id, 1 + (random() < 0.6)::int AS vendor_id, t AS tpep_pickup_datetime,
            t + random() * interval '40 min' AS tpep_dropoff_datetime, (random() * 5)::float8 AS passenger_count,
            round((random() * 20)::numeric, 2)::float8 AS trip_distance, 1 + (random() * 5)::int AS ratecode_id,
            CASE WHEN random() < 0.99 THEN 'N' ELSE 'Y' END AS store_and_fwd_flag,
            1 + (random() * 262)::int AS pu_location_id, 1 + (random() * 262)::int AS do_location_id,
            1 + (random() * 4)::int AS payment_type, round((random() * 60)::numeric, 2)::float8 AS fare_amount,
            0.5::float8 AS extra, 0.5::float8 AS mta_tax, round((random() * 12)::numeric, 2)::float8 AS tip_amount,
            round((random() * 7)::numeric, 2)::float8 AS tolls_amount, 0.3::float8 AS improvement_surcharge,
            round((random() * 90)::numeric, 2)::float8 AS total_amount, 2.5::float8 AS congestion_surcharge,
            CASE WHEN random() < 0.1 THEN 1.25::float8 END AS airport_fee
        FROM (SELECT g, '2024-01-01'::timestamp + g * interval '0.8 s' AS t FROM generate_series(1, {}) g) s""",
    "for_hire": """
        SELECT g::bigint AS id, 'B' || lpad((random() * 3000)::int::text, 5, '0') AS dispatching_base_num,
            t AS pickup_datetime, t + random() * interval '50 min' AS dropoff_datetime,
            CASE WHEN random() < 0.7 THEN 1 + (random() * 264)::int END AS pu_location_id,
            CASE WHEN random() < 0.8 THEN 1 + (random() * 264)::int END AS do_location_id,
            CASE WHEN random() < 0.1 THEN 1 END AS sr_flag,
            'B' || lpad((random() * 3000)::int::text, 5, '0') AS affiliated_base_number
        FROM (SELECT g, '2024-01-01'::timestamp + g * interval '0.1 s' AS t FROM generate_series(1, {}) g) s""",
}


@dataclass(slots=True)
class Samples:
    """The connections that read in one copy, by time, and the most memory."""

    server: EmbeddedPostgres
    readers: list[tuple[float, int]] = field(default_factory=list)
    peak_bytes: int = 0

    def watch(self, pid: int, done: threading.Event) -> None:
        """Sample until the event is set. ``pid`` is that of the first process whose memory counts."""
        with psycopg.connect(self.server.uri(), autocommit=True) as c:
            number = 0
            while not done.wait(_SAMPLE_S):
                found = c.execute("SELECT count(*) FROM pg_stat_progress_copy").fetchone()
                self.readers.append((time.monotonic(), found[0] if found else 0))
                if number % _MEMORY_EVERY == 0:
                    self.peak_bytes = max(self.peak_bytes, memory_bytes(pid))
                number += 1

    @property
    def tail_s(self) -> float:
        """The seconds from the last time at which as many connections as ever read, to the last one that reads."""
        most = max((n for _, n in self.readers), default=0)
        ends = [max((at for at, n in self.readers if n >= least), default=0.0) for least in (1, most)]
        return ends[0] - ends[1] if most else 0.0


def fill(server: EmbeddedPostgres, rows: int) -> None:
    """Make the two tables, with ``rows`` rows together."""
    yellow = int(rows * _YELLOW_SHARE)
    with psycopg.connect(server.uri(), autocommit=True) as c:
        for name, count in (("yellow", yellow), ("for_hire", rows - yellow)):
            c.execute(f"CREATE TABLE {name} AS {_TABLES[name].format(count)}")
            c.execute(f"ALTER TABLE {name} ADD PRIMARY KEY (id)")
        c.execute("VACUUM (FREEZE, ANALYZE)")


def by_psql(server: EmbeddedPostgres, connections: int) -> Usage:
    """Read each table by as many psql at the same time, and discard the rows."""
    with psycopg.connect(server.uri()) as c:
        sizes = {n: _one(c.execute(f"SELECT pg_relation_size('{n}') / 8192").fetchone()) for n in _TABLES}
    with Meter() as meter:
        for name, blocks in sizes.items():
            bounds = [blocks * n // connections for n in range(connections + 1)]
            commands = [
                f"\\copy (SELECT * FROM {name} WHERE ctid >= '({first},0)' AND ctid < '({end},0)')"
                " TO '/dev/null' (FORMAT binary)"
                for first, end in itertools.pairwise(bounds)
            ]
            running = [subprocess.Popen([server.bin / "psql", server.uri(), "-qc", command]) for command in commands]
            # All of them, so that none is left.
            if sum(process.wait() != 0 for process in running):
                raise SystemExit("psql failed")
    return meter.usage


def _one(row: Sequence[int] | None) -> int:
    return 0 if row is None else row[0]


def copied(kind: str, source: EmbeddedPostgres, connections: int) -> tuple[Usage, Samples]:
    """Copy both tables once, one after the other, by so many connections."""
    with tempfile.TemporaryDirectory() as made, EmbeddedPostgres(Path(made) / "target") as target:
        folder = Path(made)
        path = write_manifest(folder, source, target, kind)
        manifest = yaml.safe_load(path.read_text())
        manifest["metadata"]["name"] = f"taxi-{kind}-{connections}"
        manifest["spec"]["copy"] = {"maxConcurrentTables": 1, "connectionsPerTable": connections}
        manifest["spec"]["source"]["slot"] = {"name": f"taxi_{kind}_{connections}"}
        path.write_text(yaml.safe_dump(manifest))
        seen, done = Samples(source), threading.Event()
        with engine(folder, path) as process, Meter(process.pid) as own:
            watch = threading.Thread(target=seen.watch, args=(process.pid, done))
            watch.start()
            try:
                until_ready(folder, process, len(_TABLES))
            finally:
                done.set()
                watch.join()
    with psycopg.connect(source.uri(), autocommit=True) as c:
        c.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active")
    return own.usage, seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=36_000_000)
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--destinations", nargs="+", default=["iceberg", "ducklake"])
    args = parser.parse_args()
    lines = []
    with tempfile.TemporaryDirectory() as made, EmbeddedPostgres(Path(made) / "source") as source:
        fill(source, args.rows)
        for connections in args.connections:
            limit = by_psql(source, connections)
            lines.append(_line("psql, discarded", connections, args.rows, limit, limit, "", 0.0))
            for kind in args.destinations:
                usage, seen = copied(kind, source, connections)
                memory = f"{seen.peak_bytes / 1e6:.0f}"
                lines.append(_line(kind, connections, args.rows, usage, limit, memory, seen.tail_s))
    names = ("", "connections", "wall s", "rows/s", "of psql's", "CPU s/M", "MB", "tail, % of the wall time")
    print(table(names, lines))


def _line(
    name: str, connections: int, rows: int, usage: Usage, limit: Usage, memory: str, tail_s: float
) -> tuple[object, ...]:
    rate, cost = int(rows / usage.wall), usage.cpu / rows * 1e6
    return name, connections, usage.wall, rate, limit.wall / usage.wall, cost, memory, 100 * tail_s / usage.wall


if __name__ == "__main__":
    main()
