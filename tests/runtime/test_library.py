"""Pipelines of a library user: what their destinations answer, and what a start leaves behind."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.rigs.database import Database
from tests.rigs.pipeline import Only, Rig
from tests.rigs.recording import Recording
from tests.rigs.waiting import LIMIT_S

from levada.copy.rows import TableRows
from levada.destinations import Ordering
from levada.schema import ReplicatedTableSchema, TableTarget
from levada.segments.batch import EventBatch
from levada.values import Durability, TableId, Watermark


@pytest.fixture
def rig(db: Database, tmp_path: Path) -> Iterator[Rig]:
    """A pipeline of one small table, not started."""
    db.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, note text)",
        "INSERT INTO orders SELECT i, 'n' FROM generate_series(1, 10) i",
    )
    made = Rig(db, tmp_path)
    made.config = replace(made.config, selects=Only("orders"))
    yield made
    made.stop()


class Accepting(Recording):
    """Accepts copied rows, and makes them durable when a test says so. Remembers what was asked when."""

    capabilities = replace(Recording.capabilities, watermark=False, ordering=Ordering.PIPELINE)

    def __init__(self) -> None:
        super().__init__()
        self.durable = threading.Event()
        self.asked = threading.Event()
        self.steps: list[str] = []

    def write_table_rows(self, target: TableTarget, rows: TableRows, mark: Watermark) -> Durability:
        super().write_table_rows(target, rows, mark)
        self.steps.append("rows")
        return Durability.ACCEPTED

    def write_events(self, events: EventBatch, mark: Watermark) -> Durability:
        if events.only_asks:
            self.steps.append("asked")
            self.asked.set()
            return Durability.DURABLE if self.durable.is_set() else Durability.ACCEPTED
        self.steps.append("events")
        return super().write_events(events, mark)


@pytest.mark.nightly
def test_a_copy_is_finished_when_its_rows_are_durable(rig: Rig, db: Database) -> None:
    """Rows that were only accepted leave the table in its copy, and a restart copies it again."""
    accepting = Accepting()
    rig.destination = accepting
    rig.start()
    assert accepting.asked.wait(LIMIT_S)
    rig.wait(lambda p: {t.phase for t in p.tables} == {"DataSync"})
    rig.stop()
    assert accepting.steps[0] == "rows"
    assert set(accepting.steps[1:]) == {"asked"}
    accepting.durable.set()
    rig.start()
    rig.wait_caught_up()
    assert accepting.copies_of("orders") == 2
    db.execute("INSERT INTO orders VALUES (11)")
    rig.wait_caught_up()
    assert accepting.applied_rows == {"orders": 1}


class Wrong(Recording):
    """Gives a wrong answer by one of its methods."""

    def __init__(self, method: str, answer: Callable[[], Any]) -> None:
        super().__init__()
        self._method = method
        self._answer = answer

    def write_table_rows(self, target: TableTarget, rows: TableRows, mark: Watermark) -> Durability:
        answer = super().write_table_rows(target, rows, mark)
        return self._answer() if self._method == "write_table_rows" else answer  # type: ignore[no-any-return]

    def write_events(self, events: EventBatch, mark: Watermark) -> Durability:
        answer = super().write_events(events, mark)
        return self._answer() if self._method == "write_events" else answer  # type: ignore[no-any-return]

    def applied(self, table: TableId) -> Watermark | None:
        return self._answer() if self._method == "applied" else super().applied(table)  # type: ignore[no-any-return]


async def _later() -> Durability:
    return Durability.DURABLE


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("method", "answer"), [("write_table_rows", lambda: None), ("write_events", _later), ("applied", lambda: 8)]
)
def test_a_wrong_answer_parks_the_table(rig: Rig, db: Database, method: str, answer: Callable[[], Any]) -> None:
    """A table is never Ready by an answer that means nothing, and no call waits for one."""
    rig.destination = Wrong(method, answer)
    rig.start()
    if method != "write_table_rows":
        rig.wait_caught_up()
        db.execute("INSERT INTO orders VALUES (11)")
    if method == "applied":
        rig.stop()
        rig.start()
    progress = rig.wait(lambda p: any(t.phase == "Errored" for t in p.tables))
    [table] = progress.tables
    assert table.error is not None
    assert table.error.code == "destination_contract"
    assert f"Wrong.{method} returned" in table.error.reason


class Dropping(Recording):
    """Remembers by which name each table was dropped, and may fail."""

    def __init__(self) -> None:
        super().__init__()
        self.by: list[str] = []
        self.stored: Callable[[], tuple[ReplicatedTableSchema, ...]] = tuple
        self.fails = 0

    def drop_table_for_copy(self, target: TableTarget, epoch: int | None = None) -> None:
        self.by.append(target.schema.name.name)
        assert len(self.by) == 1 or self.stored(), "what was stored is there until the table is dropped"
        if self.fails:
            self.fails -= 1
            raise OSError("away")
        super().drop_table_for_copy(target)


def test_a_table_is_dropped_by_the_schema_that_it_was_copied_as(rig: Rig, db: Database) -> None:
    """The stored schema outlives the drop: an attempt that failed in between drops by the same schema again."""
    dropping = Dropping()
    rig.destination = dropping
    rig.start()
    rig.wait_caught_up()
    assert dropping.by == ["orders"]
    rig.stop()
    dropping.fails = 1
    db.execute("ALTER TABLE orders RENAME TO items")
    store = rig.store()
    rig.store = lambda: store
    dropping.stored = store.get_table_schemas
    rig.config = replace(rig.config, selects=Only("orders", "items"))
    rig.say("items", resync_nonce=1)
    rig.start()
    rig.wait(lambda p: any(t.phase == "Errored" for t in p.tables))
    assert dropping.by[1:] == ["orders"]
    rig.say("items", resync_nonce=2)
    rig.wait(lambda p: p.ready)
    rig.wait_caught_up()
    assert dropping.by[1:3] == ["orders"] * 2
    assert [c[0] for c in dropping.copies] == ["orders", "items"]


SCRIPT = """
import sys
from pathlib import Path

from levada import Destination, Durability, MemoryStore, Pipeline, PipelineConfig, PostgresConnection
from levada.destinations import Capabilities
from levada.runtime.config import PublicationConfig, SlotConfig, StagingConfig

folder, port, database = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]

class Mine(Destination):
    name = "mine"
    capabilities = Capabilities()

    def drop_table_for_copy(self, target, epoch=None): ...

    def write_table_rows(self, target, rows, mark):
        def count(reader):
            return reader.read_all().num_rows, bool({"pyspark", "py4j"} & sys.modules.keys())
        print(rows.map_partitions(count))
        return Durability.DURABLE

    def write_events(self, events, mark):
        return Durability.DURABLE

config = PipelineConfig(
    name="mine", source=PostgresConnection("127.0.0.1", port, database, sslmode="disable", user="postgres"),
    slot=SlotConfig(database), publication=PublicationConfig(database),
    staging=StagingConfig(str(folder / "staging"), durable=False), work_dir=folder,
)
with Pipeline(config, store=MemoryStore("mine"), destination=Mine()) as pipeline:
    pipeline.run_until(pipeline.caught_up())
print({"pyspark", "py4j"} & sys.modules.keys())
"""


def test_a_script_without_spark(db: Database, tmp_path: Path) -> None:
    """A destination of a script needs no guard around its pipeline, and nothing of Spark is imported anywhere."""
    db.execute("CREATE TABLE orders (id int PRIMARY KEY)", "INSERT INTO orders SELECT generate_series(1, 10)")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, script, tmp_path, str(db.server.port), db.name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "[(10, False)]\nset()\n", done.stderr
