"""CPU from the start of a process to the first row at a destination that does not ask for Spark.

    python -m benchmarks.startup

Each case is a script of a library user, in a process of its own: the rows are read in the process, or by worker
processes. The CPU is that of the process and its descendants, imports and the slot's creation included.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import psycopg
from benchmarks.measure import table

from levada.local.postgres import temporary_postgres

SCRIPT = """
import json, os, sys, threading
from pathlib import Path

from levada import Destination, Durability, MemoryStore, Pipeline, PipelineConfig, PostgresConnection
from levada.destinations import Capabilities
from levada.runtime.config import PublicationConfig, SlotConfig, StagingConfig

folder, port, way = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
first = threading.Event()

class Mine(Destination):
    name = "mine"
    capabilities = Capabilities()

    def drop_table_for_copy(self, target, epoch=None): ...

    def write_table_rows(self, target, rows, mark):
        if way == "workers":
            assert sum(rows.map_partitions(lambda reader: reader.read_all().num_rows)) == 1000
        else:
            assert rows.batches().read_all().num_rows == 1000
        first.set()
        return Durability.DURABLE

    def write_events(self, events, mark):
        return Durability.DURABLE

config = PipelineConfig(
    name="first", source=PostgresConnection("127.0.0.1", port, "postgres", sslmode="disable", user="postgres"),
    slot=SlotConfig("first_row"), publication=PublicationConfig("first_row"),
    staging=StagingConfig(str(folder / "staging"), durable=False), work_dir=folder,
)
with Pipeline(config, store=MemoryStore("first"), destination=Mine()):
    first.wait()
    from benchmarks.measure import _TICKS, _tree
    cpu = sum(p.cpu for p in _tree(os.getpid()).values()) / _TICKS
    print(json.dumps({"cpu": cpu, "spark": "pyspark" in sys.modules}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=5)
    turns = parser.parse_args().turns
    rows = []
    with temporary_postgres() as server:
        with psycopg.connect(server.uri(), autocommit=True) as c:
            c.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
            c.execute("INSERT INTO t SELECT g, 'v' FROM generate_series(1, 1000) g")
        for way in ("in the process", "workers"):
            cpu = []
            for _ in range(turns):
                with tempfile.TemporaryDirectory() as folder:
                    cpu.append(first_row(Path(folder), server.port, way))
                with psycopg.connect(server.uri(), autocommit=True) as c:
                    c.execute("SELECT pg_drop_replication_slot('first_row')")
            rows.append((way, min(cpu), statistics.median(cpu), max(cpu)))
    print(table(["rows are read", "least CPU s", "median", "most"], rows))


def first_row(folder: Path, port: int, way: str) -> float:
    """Run the script and return the CPU seconds of its processes until the first row."""
    script = folder / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-c", f"exec(open({str(script)!r}).read())", str(folder), str(port), way]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    answer = json.loads(done.stdout)
    assert not answer["spark"]
    return float(answer["cpu"])


if __name__ == "__main__":
    main()
