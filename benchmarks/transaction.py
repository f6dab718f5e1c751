"""One large transaction: the time from its COMMIT until it is visible, its cost, and the memory of the engine.

``levada run`` is a process of its own. One statement inserts all rows of a table. With ``--received`` the COMMIT waits
until the engine has received what was written. The CPU seconds are those of the engine's own process, and of it with
its other processes, before the COMMIT and after it. Usage::

    python -m benchmarks.transaction [--rows 5000000] [--destination iceberg] [--freshness 10] [--received]
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from pathlib import Path
from typing import Any

import psycopg
import yaml
from benchmarks.catchup import own_cpu
from benchmarks.freshness import engine, insert_lsn, until_applied
from benchmarks.initial_copy import COLUMNS, ROWS
from benchmarks.measure import Meter, table
from benchmarks.tables import write_manifest

from levada.local.postgres import EmbeddedPostgres
from levada.runtime.host.work_dir import running_progress
from levada.values import Lsn

_PATIENCE_S = 1800.0


def process_memory(pid: int, field: str) -> int:
    """Return a figure of one process in bytes: ``VmRSS``, or ``VmHWM``, the highest since `forget_peak`."""
    found = re.search(rf"^{field}:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def forget_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def until_received(folder: Path, c: psycopg.Connection[Any]) -> None:
    """Wait until the engine has received the WAL that is there, and had time for it."""
    target = Lsn(insert_lsn(c))
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        progress = running_progress(folder / "work")
        received = None if progress is None else progress.capture.received_lsn
        if received is not None and received >= target - (16 << 20):
            time.sleep(2.0)
            return
        time.sleep(0.2)
    raise SystemExit("the engine has not received the transaction")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--destination", choices=["iceberg", "ducklake", "postgres"], default="iceberg")
    parser.add_argument("--freshness", type=int, default=10)
    parser.add_argument("--received", action="store_true")
    options = parser.parse_args()
    rows = options.rows
    with (
        tempfile.TemporaryDirectory() as made,
        EmbeddedPostgres(Path(made) / "postgres") as server,
        EmbeddedPostgres(Path(made) / "target") as target,
    ):
        folder = Path(made)
        manifest = write_manifest(folder, server, target, options.destination)
        body = yaml.safe_load(manifest.read_text())
        body["spec"]["freshnessSeconds"] = options.freshness
        manifest.write_text(yaml.safe_dump(body))
        with psycopg.connect(server.uri(), autocommit=True) as c:
            c.execute(f"CREATE TABLE orders ({COLUMNS})")
            with engine(folder, manifest) as process:
                until_applied(folder, process, 1, 0)
                # What the first batch loads is no cost of the large one.
                c.execute("INSERT INTO orders (id) VALUES (0)")
                until_applied(folder, process, 1, insert_lsn(c))
                idle = process_memory(process.pid, "VmRSS")
                forget_peak(process.pid)
                with Meter(process.pid) as before:
                    own = own_cpu(process.pid)
                    c.execute("BEGIN")
                    c.execute(ROWS.format(rows))
                    if options.received:
                        until_received(folder, c)
                    c.execute("COMMIT")
                    committed, own_before = time.perf_counter(), own_cpu(process.pid) - own
                with Meter(process.pid) as after:
                    own = own_cpu(process.pid)
                    until_applied(folder, process, 1, insert_lsn(c), patience_s=_PATIENCE_S)
                    seconds = time.perf_counter() - committed
                    own_after = own_cpu(process.pid) - own
                above = process_memory(process.pid, "VmHWM") - idle
    print(
        table(
            (
                "rows",
                "destination",
                "s to write",
                "s from the COMMIT",
                "CPU s/M before",
                "its process's",
                "CPU s/M after",
                "its process's",
                "idle MB",
                "above it MB",
            ),
            [
                (
                    rows,
                    options.destination,
                    before.usage.wall,
                    seconds,
                    before.usage.cpu * 1e6 / rows,
                    own_before * 1e6 / rows,
                    after.usage.cpu * 1e6 / rows,
                    own_after * 1e6 / rows,
                    round(idle / 1e6),
                    round(above / 1e6),
                )
            ],
        )
    )


if __name__ == "__main__":
    main()
