"""Kills at each step of a batch that tasks write. The next process applies it once, and removes nothing of it."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.destinations.random_source import RandomSource
from tests.rigs.lake import Lake, hadoop
from tests.rigs.waiting import LIMIT_S

from levada.schema import TableTarget
from levada.segments import StagedBatch, Staging

__all__ = ["hadoop"]

SCRIPT = """
import os, pickle, signal, sys
from functools import partial
from pathlib import Path

from levada.destinations import DestinationContext
from levada.destinations.data_files import parallel_upsert
from levada.destinations.iceberg import IcebergDestination
from levada.destinations.iceberg.settings import Settings
from levada.destinations.iceberg.table import IcebergTable
from levada.destinations.key_index.index import KeyIndex
from levada.destinations.key_index.table_index import TableIndex
from levada.runtime.resources.spark import spark_session

from levada.copy.results_in_order import OrderedResults

OrderedResults.next_here = lambda self: self.queue.take_now() if self.ended else None
step, manifest, pipeline, work, batch, mark, folder = pickle.loads(Path(sys.argv[1]).read_bytes())
kind = IcebergDestination
executors = {"spark.master": "local-cluster[2,2,512]", "spark.executor.memory": "512m"}
executors["spark.driver.host"] = "127.0.0.1"
conf = executors if step == "executors" else {}
spark = spark_session("kills", cores=4, conf=conf, defaults=kind.spark_conf(None), jars=kind.jars())
destination = kind.from_settings(Settings.model_validate(manifest), DestinationContext(pipeline, work, spark))

def killed(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

def dies_once(task, once, events):
    written = task(events)
    if not once.exists():
        once.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return written

calls = []

def dies_later(self, *arguments, plain=KeyIndex.add_file):
    calls.append(arguments)
    plain(self, *arguments)
    if len(calls) == 3:
        killed()

def dies_after(self, *arguments, plain=IcebergTable.commit):
    plain(self, *arguments)
    killed()

if step in ("task", "executors"):
    parallel_upsert.partial = lambda task, part: partial(dies_once, task, folder / str(part.share[0]), part)
elif step == "place":
    KeyIndex.add_file = dies_later
elif step == "before":
    IcebergTable.commit = killed
elif step == "after":
    IcebergTable.commit = dies_after
elif step == "index":
    TableIndex.commit = killed
destination.write_events(batch, mark)
print(batch.changes(batch.tables[0]).tasks)
"""


@pytest.mark.parametrize(
    ("step", "version"), [("task", 2), ("executors", 3), ("place", 2), ("before", 3), ("after", 2), ("index", 3)]
)
def test_kills_at_each_step(hadoop: Lake, tmp_path: Path, step: str, version: int) -> None:
    """Whichever process is killed at whichever step, the table has the rows of the source after the next attempt.

    Tasks are killed in the driver's processes and in those of executors, and run again.
    """
    hadoop.manifest["formatVersion"] = version
    source = RandomSource(5)
    source.stream.limit(task_rows=3)
    destination = hadoop.destination()
    destination.write_table_rows(TableTarget.of(source.schema), source.copied(), hadoop.mark(1000))
    destination.shutdown()
    for _ in range(3):
        source.change()
    first = source.stream.start()
    batch = source.stream.batch()
    if step == "executors":
        made = source.stream.source
        staging = Staging.open(f"file://{made.staging.uri}")
        batch = StagedBatch(staging, made.manifests, [first], batch.until, limits=made.limits)
    mark = hadoop.mark(batch.until)
    call = (step, hadoop.manifest, hadoop.context.pipeline, hadoop.context.work_dir, batch, mark, tmp_path)
    (tmp_path / "call").write_bytes(pickle.dumps(call))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "call")],
        env=os.environ | {"SPARK_LOCAL_DIRS": str(tmp_path)}, cwd=tmp_path,
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == (0 if step in ("task", "executors") else -signal.SIGKILL), done.stderr[-4000:]
    if step in ("task", "executors"):
        assert int(done.stdout) > 3
        assert len([p for p in tmp_path.iterdir() if p.name.isdigit()]) > 1
    destination = hadoop.destination()
    applied = destination.applied(source.schema.id)
    assert applied == (mark if step in ("task", "executors", "after", "index") else hadoop.mark(1000))
    destination.write_events(batch, mark)
    check(hadoop, source)
    for _ in range(3):
        source.change()
    batch = source.stream.batch()
    destination.write_events(batch, hadoop.mark(batch.until))
    check(hadoop, source)


def check(lake: Lake, source: RandomSource) -> None:
    """Compare the table with the source."""
    names = sorted(c.name for c in source.schema.columns)
    seen = {row["id"]: tuple(f"{n}={row[n]!r}" for n in names) for row in lake.by_pyiceberg().to_pylist()}
    assert seen == source.expected()
    assert lake.by_spark().num_rows == len(seen)
