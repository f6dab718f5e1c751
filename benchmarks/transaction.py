"""One large transaction: the memory that the engine's own process needs above its idle size, and the duration.

``levada run`` is a process of its own. One statement inserts all rows of a table. Usage::

    python -m benchmarks.transaction [--rows 5000000]
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from pathlib import Path

import psycopg
from benchmarks.freshness import engine, insert_lsn, until_applied, write_manifest
from benchmarks.initial_copy import COLUMNS, ROWS
from benchmarks.measure import Meter, table

from levada.local.postgres import EmbeddedPostgres


def process_memory(pid: int, field: str) -> int:
    """Return a figure of one process in bytes: ``VmRSS``, or ``VmHWM``, the highest since `forget_peak`."""
    found = re.search(rf"^{field}:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def forget_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    rows = parser.parse_args().rows
    with tempfile.TemporaryDirectory() as made, EmbeddedPostgres(Path(made) / "postgres") as server:
        folder = Path(made)
        with psycopg.connect(server.uri(), autocommit=True) as c:
            c.execute(f"CREATE TABLE orders ({COLUMNS})")
            with engine(folder, write_manifest(folder, server, 10)) as process:
                until_applied(folder, process, 1, 0)
                # What the first batch loads is no cost of the large one.
                c.execute("INSERT INTO orders (id) VALUES (0)")
                until_applied(folder, process, 1, insert_lsn(c))
                idle = process_memory(process.pid, "VmRSS")
                forget_peak(process.pid)
                with Meter(process.pid) as meter:
                    c.execute(ROWS.format(rows))
                    committed = time.perf_counter()
                    until_applied(folder, process, 1, insert_lsn(c), patience_s=1800)
                    seconds = time.perf_counter() - committed
                above = process_memory(process.pid, "VmHWM") - idle
    print(
        table(
            ("rows", "s from the commit", "CPU s/M", "idle MB", "above it MB"),
            [(rows, seconds, meter.usage.cpu * 1e6 / rows, round(idle / 1e6), round(above / 1e6))],
        )
    )


if __name__ == "__main__":
    main()
