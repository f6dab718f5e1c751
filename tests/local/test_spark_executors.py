"""Spark's tasks in processes of their own, set up as the operator does it: ``driver.mode: Cluster`` without a node."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from tests.rigs.database import Database
from tests.rigs.waiting import LIMIT_S

SCRIPT = """
import json, os, pickle, sys
from pathlib import Path

from levada.copy.snapshot import SnapshotRows
from levada.copy.spark_tasks import SparkTasks
from levada.postgres.catalog import published_tables, read_table_schema
from levada.postgres.slots import export_snapshot
from levada.runtime.resources.spark import spark_session

source = pickle.loads(bytes.fromhex(sys.argv[1]))
spark = spark_session("executors")
with export_snapshot(source, "copying") as snapshot, source.connect() as connection:
    (table,) = published_tables(connection, "p")
    schema = read_table_schema(connection, table.id, columns=table.column_attnums)
    rows = SnapshotRows(SparkTasks(spark), source, snapshot, table, schema, connections=2)

    def read(reader):
        return sum(batch.num_rows for batch in reader), os.getppid()

    counts = rows.map_partitions(read)
executors = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
print(json.dumps({
    "rows": sum(c for c, _ in counts),
    "here": os.getpid() in {p for _, p in counts},
    "executors": len(executors) - 1,
}))
spark.stop()
"""


@pytest.mark.nightly
@pytest.mark.usefixtures("own_jvm")
def test_copy_runs_in_executors(db: Database, tmp_path: Path) -> None:
    """A copy's tasks run in an executor that the properties file asks for, with this Python and our modules."""
    db.execute(
        "CREATE TABLE t (id int PRIMARY KEY, word text)",
        "INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1, 20000) i",
        "ANALYZE t",
        "CREATE PUBLICATION p FOR TABLE t",
    )
    properties = tmp_path / "spark.properties"
    said = ("spark.master local-cluster[1,2,512]", "spark.executor.memory 512m", "spark.driver.host 127.0.0.1")
    properties.write_text("\n".join(said))
    environment = os.environ | {"LEVADA_SPARK_PROPERTIES": str(properties), "SPARK_LOCAL_DIRS": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, pickle.dumps(db.connection).hex()],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout) == {"rows": 20000, "here": False, "executors": 1}
