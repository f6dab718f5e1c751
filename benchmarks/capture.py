"""WAL to durable segments with the slot acknowledged, and pg_recvlogical to /dev/null on the same backlog.

Both read the same WAL through slots of their own, in turns. Prints rows per second of the wall clock, CPU seconds of
the client per million rows, and the ratio of the two. Usage::

    python benchmarks/capture.py [--rows 1000000] [--transactions 100 1] [--turns 2]
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psycopg

from levada.capture import CaptureHost, CaptureSettings, CaptureWorker, TableResolver
from levada.local.postgres import EmbeddedPostgres
from levada.postgres.connection import PostgresConnection
from levada.segments import SegmentLog, Staging
from levada.stores.memory import MemoryStore
from levada.values import Lsn

COLUMNS = (
    "id bigint PRIMARY KEY, n int, a text, b text, p numeric(12,2), ts timestamptz, f bool, d float8, u uuid, j jsonb"
)
VALUES = (
    "g, g % 1000, 'name ' || g, repeat('x', 20) || g, g * 1.37, now() + g * interval '1 s', g % 3 = 0, g / 7.0, "
    "gen_random_uuid(), jsonb_build_object('k', g, 'v', 'value ' || g)"
)
PUBLICATION = "benchmark"


@dataclass(frozen=True)
class Run:
    wall_s: float
    cpu_s: float


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--transactions", type=int, nargs="+", default=[100, 1])
    parser.add_argument("--turns", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, EmbeddedPostgres(Path(folder) / "data") as server:
        for per_transaction in options.transactions:
            compare(server, Path(folder), options.rows, per_transaction, options.turns)


def compare(server: EmbeddedPostgres, folder: Path, rows: int, per_transaction: int, turns: int) -> None:
    slots = [f"{kind}_{per_transaction}_{turn}" for turn in range(turns) for kind in ("levada", "recvlogical")]
    end = backlog(server, slots, rows, per_transaction)
    best: dict[str, Run] = {}
    for slot in slots:
        kind = slot.partition("_")[0]
        run = capture(server, folder / slot, slot, end, rows) if kind == "levada" else recvlogical(server, slot, end)
        print(f"  {slot:24} {rows / run.wall_s:10,.0f} rows/s  {run.cpu_s / rows * 1e6:6.2f} CPU s per million rows")
        if kind not in best or run.wall_s < best[kind].wall_s:
            best[kind] = run
    ratio = best["recvlogical"].wall_s / best["levada"].wall_s
    print(
        f"transactions of {per_transaction}: {rows / best['levada'].wall_s:,.0f} rows/s,"
        f" {best['levada'].cpu_s / rows * 1e6:.2f} CPU s per million rows,"
        f" {ratio:.2f} times pg_recvlogical's rows/s"
    )


def backlog(server: EmbeddedPostgres, slots: list[str], rows: int, per_transaction: int) -> Lsn:
    """Make the slots, then the changes. Return the LSN of their end."""
    with psycopg.connect(server.uri(), autocommit=True) as c:
        c.execute("DROP TABLE IF EXISTS wal")
        c.execute(f"DROP PUBLICATION IF EXISTS {PUBLICATION}")
        c.execute(f"CREATE TABLE wal ({COLUMNS})")
        c.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE wal")
        for slot in slots:
            c.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])
        series = f"generate_series(t * {per_transaction}, (t + 1) * {per_transaction} - 1) g"
        insert = f"INSERT INTO wal SELECT {VALUES} FROM {series}"
        loop = f"DO $$ BEGIN FOR t IN 0..{rows // per_transaction - 1} LOOP {insert}; COMMIT; END LOOP; END $$"
        c.execute(loop)
        [(end,)] = c.execute("SELECT pg_current_wal_flush_lsn()::text").fetchall()
        c.execute("CHECKPOINT")
        # Something after the end, so that a reader that stops there sees that it has passed.
        c.execute("SELECT pg_logical_emit_message(false, 'end', '', true)")
        return Lsn.parse(end)


def capture(server: EmbeddedPostgres, folder: Path, slot: str, end: Lsn, rows: int) -> Run:
    connection = PostgresConnection("127.0.0.1", server.port, "postgres", sslmode="disable", user="postgres")
    log = SegmentLog(Staging.open(str(folder)), "benchmark")
    host = CaptureHost()
    resolver = TableResolver(connection, MemoryStore(), PUBLICATION, host)
    # The end may follow WAL without changes, whose acknowledgement must not wait for the idle interval of 10 s.
    settings = CaptureSettings(connection, slot, PUBLICATION, idle_s=0.1)
    worker = CaptureWorker(settings, log, resolver, host, epoch=1)
    stop = threading.Event()
    # The run itself is in this thread, as in the engine; this one only looks when it is done.
    watch = threading.Thread(target=_stop_at, args=(lambda: worker.position.acknowledged_lsn or Lsn(0), end, stop))
    watch.start()
    began, cpu = time.perf_counter(), time.process_time()
    worker.run(stop)
    run = Run(time.perf_counter() - began, time.process_time() - cpu)
    watch.join()
    assert sum(m.total_rows for m in log.list()) == rows
    with psycopg.connect(server.uri()) as c:
        [(confirmed,)] = c.execute(
            "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s", [slot]
        ).fetchall()
        assert Lsn.parse(confirmed) >= end
    return run


def _stop_at(position: Callable[[], Lsn], end: Lsn, stop: threading.Event) -> None:
    while position() < end:
        time.sleep(0.01)
    stop.set()


def recvlogical(server: EmbeddedPostgres, slot: str, end: Lsn) -> Run:
    command = [
        str(server.bin / "pg_recvlogical"), "-d", server.uri(), "--slot", slot, "--start", "-f", os.devnull,
        "-o", "proto_version=1", "-o", f"publication_names={PUBLICATION}", "--endpos", str(end), "--no-loop",
    ]  # fmt: skip
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Run(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


if __name__ == "__main__":
    main()
