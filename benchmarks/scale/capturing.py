"""Capture: tables, transactions, columns and the length of texts."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

import psycopg
from benchmarks.capture import COLUMNS, VALUES, backlog, capture
from benchmarks.scale.curve import Definition, Points

from levada.capture import CaptureHost, CaptureSettings, CaptureWorker, TableResolver
from levada.local.postgres import EmbeddedPostgres
from levada.postgres.connection import PostgresConnection
from levada.segments import Manifest, SegmentLog, Staging
from levada.stores.memory import MemoryStore
from levada.values import Lsn

RATE = 1000
"""Changes a second, in transactions of ten, evenly over the tables."""
SECONDS = 12
_ROWS = 200_000


class Writer:
    """Writes at `RATE` on the server, so that the client's CPU is that of capture alone."""

    def __init__(self, server: EmbeddedPostgres, tables: int) -> None:
        values = VALUES.replace("'", "''").replace("%", "%%")
        row = f"EXECUTE format('INSERT INTO t_%s SELECT {values} FROM (SELECT %s::bigint g) s', n % {tables}, n);"
        self._loop = (
            "DO $$ DECLARE n int := {first}; began timestamptz := clock_timestamp();"
            " BEGIN FOR tick IN 1..{ticks} LOOP"
            f" FOR i IN 1..{RATE // 100} LOOP FOR k IN 1..10 LOOP n := n + 1; {row} END LOOP; COMMIT; END LOOP;"
            " PERFORM pg_sleep(greatest(0, extract(epoch FROM began - clock_timestamp()) + tick * 0.1));"
            " END LOOP; END $$"
        )
        self._server = server
        # No key twice, also not in the runs with other numbers of tables.
        self._next = tables * 1_000_000

    def write(self, seconds: float) -> Lsn:
        """Write for so long, and return the end of the WAL."""
        ticks = int(seconds * 10)
        with psycopg.connect(self._server.uri(), autocommit=True) as c:
            c.execute(self._loop.replace("{first}", str(self._next)).replace("{ticks}", str(ticks)))
            self._next += ticks * RATE // 10
            [(end,)] = c.execute("SELECT pg_current_wal_flush_lsn()::text").fetchall()
            c.execute("SELECT pg_logical_emit_message(false, 'end', '', true)")
        return Lsn.parse(end)


def tables(sizes: Sequence[int], folder: Path) -> Points:
    points: Points = {"CPU s per million changes": [], "objects of a segment": []}
    with EmbeddedPostgres(folder / "data") as server:
        with psycopg.connect(server.uri(), autocommit=True) as c:
            for number in range(max(sizes)):
                c.execute(f"CREATE TABLE t_{number} ({COLUMNS})")
        for size in sizes:
            cpu_s, staged = _live(server, Staging.open(str(folder / "staging")), size)
            rows = sum(m.total_rows for m in staged)
            points["CPU s per million changes"].append((size, cpu_s / rows * 1e6))
            points["objects of a segment"].append((size, sum(len(m.paths) + 1 for m in staged) / len(staged)))
    return points


def _live(server: EmbeddedPostgres, staging: Staging, size: int) -> tuple[float, list[Manifest]]:
    """Capture `SECONDS` seconds of changes of so many tables. Return the CPU seconds and the segments."""
    name = f"tables_{size}"
    with psycopg.connect(server.uri(), autocommit=True) as c:
        names = ", ".join(f"t_{n}" for n in range(size))
        c.execute(f"CREATE PUBLICATION {name} FOR TABLE {names}")
        c.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [name])
    connection = PostgresConnection("127.0.0.1", server.port, "postgres", sslmode="disable", user="postgres")
    staged: list[Manifest] = []
    host = CaptureHost()
    host.segment_staged = staged.append  # type: ignore[method-assign,assignment]  # it collects them
    resolver = TableResolver(connection, MemoryStore(), name, host)
    worker = CaptureWorker(CaptureSettings(connection, name, name), SegmentLog(staging, name), resolver, host, epoch=1)
    stop = threading.Event()
    thread = threading.Thread(target=worker.run, args=[stop])
    thread.start()
    writer = Writer(server, size)
    # The first changes read the catalog and fill the caches, which is no part of the steady cost.
    _wait(worker, writer.write(2))
    before, cpu = len(staged), time.process_time()
    _wait(worker, writer.write(SECONDS))
    cpu = time.process_time() - cpu
    stop.set()
    thread.join()
    return cpu, staged[before:]


def _wait(worker: CaptureWorker, end: Lsn) -> None:
    while (worker.position.acknowledged_lsn or Lsn(0)) < end:
        time.sleep(0.05)


def transactions(sizes: Sequence[int], folder: Path) -> Points:
    points: Points = {"CPU s per million rows": []}
    with EmbeddedPostgres(folder / "data") as server:
        for size in sizes:
            slot = f"transactions_{size}"
            end = backlog(server, [slot], _ROWS, size)
            run = capture(server, folder / slot, slot, end, _ROWS)
            points["CPU s per million rows"].append((size, run.cpu_s / _ROWS * 1e6))
    return points


def columns(sizes: Sequence[int], folder: Path) -> Points:
    kinds = [("int", "g"), ("text", "'value ' || g"), ("numeric(12,2)", "g / 4.0"), ("timestamptz", "now()")]
    points: Points = {"CPU s per million rows": []}
    with EmbeddedPostgres(folder / "data") as server:
        _warm_up(server, folder)
        for size in sizes:
            chosen = [kinds[n % len(kinds)] for n in range(size)]
            rows = 3_000_000 // size
            defined = ", ".join(f"c{n} {kind}" for n, (kind, _) in enumerate(chosen))
            cpu_s = _table(server, folder, f"columns_{size}", defined, ", ".join(v for _, v in chosen), rows)
            points["CPU s per million rows"].append((size, cpu_s / rows * 1e6))
    return points


def texts(sizes: Sequence[int], folder: Path) -> Points:
    points: Points = {"CPU ms per thousand rows": []}
    with EmbeddedPostgres(folder / "data") as server:
        _warm_up(server, folder)
        for size in sizes:
            rows = max(100, min(100_000, 200_000_000 // size))
            cpu_s = _table(server, folder, f"texts_{size}", "id bigint, t text", f"g, {_text(size)}", rows)
            points["CPU ms per thousand rows"].append((size, cpu_s / rows * 1e6))
    return points


def _text(size: int) -> str:
    """Return an expression of a text that does not compress to nothing."""
    return f"left(repeat(md5(g::text), {size // 32 + 1}), {size})"


def _warm_up(server: EmbeddedPostgres, folder: Path) -> None:
    """Capture a few rows, because the first capture of a process also loads libraries."""
    _table(server, folder, "warm_up", "id bigint, t text", "g, 'value ' || g", 1000)


def _table(server: EmbeddedPostgres, folder: Path, name: str, defined: str, values: str, rows: int) -> float:
    """Capture so many rows of a table, in transactions of 100. Return the CPU seconds."""
    with psycopg.connect(server.uri(), autocommit=True) as c:
        c.execute("DROP PUBLICATION IF EXISTS benchmark")
        c.execute(f"CREATE TABLE {name} ({defined})")
        c.execute(f"CREATE PUBLICATION benchmark FOR TABLE {name}")
        c.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [name])
        insert = f"INSERT INTO {name} SELECT {values} FROM generate_series(t * 100, t * 100 + 99) g"
        loop = f"DO $$ BEGIN FOR t IN 0..{rows // 100 - 1} LOOP {insert}; COMMIT; END LOOP; END $$"
        c.execute(loop)
        # Its commits are asynchronous, so the end that is flushed may lie before them.
        c.execute("CHECKPOINT")
        [(end,)] = c.execute("SELECT pg_current_wal_flush_lsn()::text").fetchall()
        c.execute("SELECT pg_logical_emit_message(false, 'end', '', true)")
    run = capture(server, folder / name, name, Lsn.parse(end), rows // 100 * 100)
    return run.cpu_s


DEFINITIONS = (
    Definition("capture-tables", f"Capture of {RATE:,} changes a second, by the number of tables", "tables",
               "CPU s per million changes; objects of a segment", (1, 20, 200), (1, 20, 200, 1000), 1.0, tables),
    Definition("capture-transactions", "Capture, by the rows of a transaction", "rows of a transaction",
               "CPU s per million rows", (1, 100, 10_000), (1, 100, 10_000), 0.0, transactions),
    Definition("capture-columns", "Capture, by the number of columns", "columns", "CPU s per million rows",
               (5, 30, 300), (5, 10, 30, 100, 300), 1.0, columns),
    Definition("capture-texts", "Capture, by the length of a text", "bytes of the text", "CPU ms per thousand rows",
               (10, 1000, 100_000), (10, 100, 1000, 10_000, 100_000, 1_000_000), 1.0, texts),
)  # fmt: skip
