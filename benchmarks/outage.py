"""The cost of a lake that is away: CPU of the engine, memory, and the delay of capture, minute by minute.

``levada run`` is a process of its own, with a JDBC catalog on a second server. After the copies the catalog is stopped
for a while, during which each table gets changes at an even rate, and is started again. With ``--freshness 2`` a
segment is staged every two seconds, so half an hour has the segments of a longer outage at ``freshnessSeconds: 10``.
Usage::

    python -m benchmarks.outage [--tables 1000] [--rate 200] [--minutes 30] [--freshness 2]
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import yaml
from benchmarks.freshness import engine, fill, first_rows, insert_lsn, names, until_applied, write_manifest
from benchmarks.measure import Meter, memory_bytes, table

from levada.local.postgres import EmbeddedPostgres
from levada.runtime.host.work_dir import running_progress

_MINUTE_S = 60.0


@dataclass
class Writer:
    """Updates one row of each table in turn, and knows the positions of its commits that are not staged yet."""

    server: EmbeddedPostgres
    tables: list[str]
    rate: int
    pending: list[tuple[float, int]] = field(default_factory=list)
    changes: int = 0
    stopped: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        began = time.monotonic()
        with psycopg.connect(self.server.uri(), autocommit=True, prepare_threshold=1) as c:
            while not self.stopped.is_set():
                name, row = self.tables[self.changes % len(self.tables)], self.changes % first_rows(self.tables) + 1
                c.execute(f"UPDATE {name} SET i = i + 1, ts = now() WHERE id = %s", [row])
                self.changes += 1
                if self.changes % self.rate == 0:
                    self.pending.append((time.monotonic(), insert_lsn(c)))
                time.sleep(max(0.0, began + self.changes / self.rate - time.monotonic()))

    def behind_s(self, staged: int) -> float:
        """Return the age of the oldest commit that is not staged."""
        self.pending = [(at, lsn) for at, lsn in self.pending if lsn > staged]
        return time.monotonic() - self.pending[0][0] if self.pending else 0.0


def with_jdbc(manifest: Path, catalog: EmbeddedPostgres) -> Path:
    """Put the tables of the manifest into a JDBC catalog on the server."""
    body = yaml.safe_load(manifest.read_text())
    iceberg = body["spec"]["destination"]["iceberg"]
    iceberg["catalog"] |= {
        "type": "Jdbc",
        "uri": f"jdbc:postgresql://127.0.0.1:{catalog.port}/postgres",
        "properties": {"jdbc.user": "postgres"},
    }
    manifest.write_text(yaml.safe_dump(body))
    return manifest


def watch(folder: Path, process: subprocess.Popen[bytes], writer: Writer, minutes: int) -> list[tuple[object, ...]]:
    """Return a row for each minute of the outage."""
    rows: list[tuple[object, ...]] = []
    for minute in range(1, minutes + 1):
        end, worst = time.monotonic() + _MINUTE_S, 0.0
        with Meter(process.pid) as meter:
            while time.monotonic() < end and process.poll() is None:
                time.sleep(2)
                if (seen := running_progress(folder / "work")) is not None:
                    worst = max(worst, writer.behind_s(int(seen.capture.staged_lsn or 0)))
        assert seen is not None, "the engine ended"
        used = meter.usage.cpu / meter.usage.wall
        memory = round(memory_bytes(process.pid) / 1e6)
        rows.append((minute, seen.staging.segments, round(seen.staging.bytes / 1e6), used, worst, memory))
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=1000)
    parser.add_argument("--rate", type=int, default=200, help="changes a second, over all tables")
    parser.add_argument("--minutes", type=int, default=30)
    parser.add_argument("--freshness", type=int, default=2, help="the manifest's freshnessSeconds")
    options = parser.parse_args()
    tables = names(options.tables)
    with (
        tempfile.TemporaryDirectory() as made,
        EmbeddedPostgres(Path(made) / "postgres") as server,
        EmbeddedPostgres(Path(made) / "catalog") as catalog,
    ):
        folder = Path(made)
        fill(server, tables)
        with engine(folder, with_jdbc(write_manifest(folder, server, options.freshness), catalog)) as process:
            until_applied(folder, process, len(tables), 0, patience_s=3600)
            writer = Writer(server, tables, options.rate)
            thread = threading.Thread(target=writer.run)
            thread.start()
            catalog.stop()
            try:
                rows = watch(folder, process, writer, options.minutes)
            finally:
                writer.stopped.set()
                thread.join()
            with psycopg.connect(server.uri()) as c:
                last = insert_lsn(c)
            catalog.start()
            with Meter(process.pid) as meter:
                until_applied(folder, process, len(tables), last, patience_s=3600)
    print(table(("minute", "segments", "MB staged", "of a core", "capture behind s", "MB memory"), rows))
    print(f"{writer.changes} changes of {len(tables)} tables; afterwards applied in {meter.usage}")


if __name__ == "__main__":
    main()
