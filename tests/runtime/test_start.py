"""The start and the end of a pipeline object: what is refused, what is checked first, and what is taken back."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.rigs.database import Database
from tests.rigs.pipeline import Only, Rig
from tests.rigs.recording import Once, Recording
from tests.rigs.waiting import LIMIT_S, until
from tests.servers.mounts import fill, small_file_system

from levada.errors import NeedsOperator, StaleEpoch, Transient
from levada.local.postgres import EmbeddedPostgres
from levada.runtime.config import RetryLimits
from levada.runtime.pipeline import Pipeline
from levada.segments.batch import EventBatch
from levada.status import PipelineState
from levada.stores import MemoryStore, PostgresStore
from levada.stores.connection import StoreConnection
from levada.stores.phases import TableReplicationPhase
from levada.values import Durability, TableId, Watermark


@pytest.fixture
def rig(db: Database, tmp_path: Path) -> Iterator[Rig]:
    """A pipeline of one small table, not started."""
    db.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)", "CREATE TABLE items (id int PRIMARY KEY)")
    made = Rig(db, tmp_path)
    made.config = replace(made.config, selects=Only("orders"))
    yield made
    made.stop()


def at_source(db: Database) -> list[tuple[str, ...]]:
    """Return what pipelines have made at the source."""
    return [
        *db.query("SELECT 'slot', slot_name FROM pg_replication_slots WHERE database = %s", db.name),
        *db.query("SELECT 'publication', pubname FROM pg_publication"),
        *db.query("SELECT 'table', tablename FROM pg_publication_tables ORDER BY 2"),
        *db.query("SELECT 'trigger', evtname FROM pg_event_trigger"),
        *db.query("SELECT 'schema', nspname FROM pg_namespace WHERE nspname = 'levada'"),
    ]


def test_all_problems_of_the_source_are_one_error(rig: Rig, db: Database, role: str) -> None:
    """A start without privileges raises each problem with its code, and the SQL that resolves it. Nothing is made."""
    rig.config = replace(rig.config, source=replace(db.connection, user=role))
    with pytest.raises(NeedsOperator) as refused:
        rig.start()
    assert refused.value.code == "preflight_failed"
    lines = str(refused.value).splitlines()
    assert lines[0] == "4 problems with the source:"
    for code in ("replication_privilege_missing", "publication_missing", "select_privilege_missing"):
        assert any(line.startswith("  - ") and f"[{code}]" in line for line in lines), lines
    assert any("GRANT SELECT" in line for line in refused.value.hint.splitlines())
    assert at_source(db) == []


class Failing(MemoryStore):
    """A store of a user's own that fails at the last step of a start."""

    def update_table_replication_states(self, updates: Mapping[TableId, TableReplicationPhase]) -> None:
        if updates:
            raise ZeroDivisionError("the store has a fault")
        super().update_table_replication_states(updates)


def test_a_failed_start_takes_back_what_it_made(rig: Rig, db: Database) -> None:
    """Slot, publication, its new tables and the trigger go again, and nothing else. The next start is as the first."""
    rig.store = lambda: Failing("shop", rig.storage)
    with pytest.raises(ZeroDivisionError):
        rig.start()
    assert at_source(db) == []
    assert rig.running is not None
    assert rig.running.progress().state is PipelineState.FAILED  # paced: it has ended
    with pytest.raises(NeedsOperator) as ended:
        rig.running.wait()
    assert ended.value.code == "internal_error"
    db.execute(f"CREATE PUBLICATION levada_{db.name} FOR TABLE items")  # type: ignore[arg-type]
    with pytest.raises(ZeroDivisionError):
        rig.start()
    assert at_source(db) == [("publication", f"levada_{db.name}"), ("table", "items")]
    rig.store = lambda: MemoryStore("shop", rig.storage)
    rig.start()
    rig.wait_caught_up()


class FailingElsewhere(PostgresStore):
    """A store in another database that fails at the last step of a start."""

    def update_table_replication_states(self, updates: Mapping[TableId, TableReplicationPhase]) -> None:
        if updates:
            raise ZeroDivisionError("the store has a fault")
        super().update_table_replication_states(updates)


def test_a_failed_start_with_its_store_in_another_database(rig: Rig, db: Database, postgres: EmbeddedPostgres) -> None:
    """A failed start removes its objects at the source, and its claim at the store."""
    name = f"{db.name}_state"
    with psycopg.connect(postgres.uri(), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")  # type: ignore[arg-type]
    state = Database(postgres, name)
    connection = StoreConnection("127.0.0.1", postgres.port, name, sslmode="disable", user="postgres")
    rig.store = lambda: FailingElsewhere(connection, "shop")
    with pytest.raises(ZeroDivisionError):
        rig.start()
    assert at_source(db) == []
    assert state.query("SELECT pipeline FROM levada.documents WHERE kind = 'owner'") == []
    rig.stop()
    rig.store = lambda: PostgresStore(connection, "shop")
    rig.start()
    rig.wait_caught_up()
    assert state.query("SELECT owner_uid IS NOT NULL FROM levada.pipelines") == [(True,)]
    rig.stop()


class Raced(MemoryStore):
    """A store of a start in the midst of which a pipeline of another database creates its slot."""

    meanwhile: Callable[[], object]

    def update_table_replication_states(self, updates: Mapping[TableId, TableReplicationPhase]) -> None:
        self.meanwhile()
        super().update_table_replication_states(updates)


def test_a_failed_start_leaves_the_slot_of_another_database(rig: Rig, db: Database, postgres: EmbeddedPostgres) -> None:
    """A slot that a pipeline of another database created under the same name, during the start, is that pipeline's."""
    name = rig.config.slot.name
    other = Database(postgres, "postgres")
    store = Raced("shop", rig.storage)
    store.meanwhile = lambda: other.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", name)
    rig.store = lambda: store
    try:
        with pytest.raises(NeedsOperator) as refused:
            rig.start()
        assert refused.value.code == "slot_foreign"
        assert at_source(db) == []
        assert other.query("SELECT database FROM pg_replication_slots WHERE slot_name = %s", name) == [("postgres",)]
    finally:
        other.query("SELECT pg_drop_replication_slot(%s)", name)


def test_a_start_makes_room_in_a_full_staging_area(rig: Rig, db: Database, tmp_path: Path) -> None:
    """A restart finds staging full of what it may remove or apply. Refusing it would leave staging full for good."""
    staging = tmp_path / "staging"
    with small_file_system(staging, "4m"):
        rig.start()
        rig.wait_caught_up()
        rig.stop()
        (staging / "shop").mkdir(exist_ok=True)
        filler = fill(staging / "shop", leaving=0)
        rig.start()
        assert not filler.exists(), "no segment names it"
        db.execute("INSERT INTO orders VALUES (1)")
        rig.wait_caught_up()
        rig.stop()
        shutil.rmtree(staging / "shop")
        fill(staging, leaving=0)
        with pytest.raises(Transient) as full:
            rig.start()
        assert full.value.code == "staging_full"


class Faulty(MemoryStore):
    """A store of a user's own whose writes raise any exception, once a test sets it."""

    error: BaseException | None = None

    def upsert_replication_progress(self, worker: str, lsn: Any) -> Any:
        if type(self).error is not None and worker.startswith("table"):
            raise type(self).error
        return super().upsert_replication_progress(worker, lsn)

    def prune_table_schemas(self, retentions: Any) -> int:
        if type(self).error is not None:
            raise type(self).error
        return super().prune_table_schemas(retentions)


@pytest.mark.parametrize("error", [ZeroDivisionError("a fault"), SystemExit(1)])
def test_whatever_a_store_raises_ends_the_pipeline(rig: Rig, db: Database, error: BaseException) -> None:
    """The end is reported to who waits, the slot is free, and a restart goes on from what was stored."""
    rig.destination = Once()
    rig.store = lambda: Faulty("shop", rig.storage)
    rig.start()
    rig.wait_caught_up()
    Faulty.error = error
    try:
        db.execute("INSERT INTO orders VALUES (1)")
        assert rig.running is not None
        with pytest.raises(NeedsOperator) as ended:
            rig.running.wait(LIMIT_S)
        assert ended.value.code == "internal_error"
        assert rig.running.progress().state is PipelineState.FAILED  # paced: it has ended
        # The server notices a moment later that the connection is closed.
        slot = "SELECT active FROM pg_replication_slots WHERE database = %s"
        until(lambda: db.query(slot, db.name), lambda found: found == [(False,)])
    finally:
        Faulty.error = None
    rig.start()
    rig.wait_caught_up()
    assert rig.destination.applied_rows == {"orders": 2}


class Interrupted(Recording):
    """Fails with an error that has a meaning of its own inside of the engine."""

    def write_events(self, events: EventBatch, mark: Watermark) -> Durability:
        raise InterruptedError(4, "interrupted")


def test_an_interrupted_destination_is_an_error(rig: Rig, db: Database) -> None:
    """An InterruptedError of a destination parks the table, as any other error does."""
    rig.destination = Interrupted()
    rig.start()
    rig.wait_caught_up()
    db.execute("INSERT INTO orders VALUES (1)")
    progress = rig.wait(lambda p: any(t.phase == "Errored" for t in p.tables))
    assert progress.tables[0].error is not None
    assert progress.tables[0].error.code == "internal_error"


def test_a_block_does_not_hide_how_the_pipeline_ended(rig: Rig, db: Database) -> None:
    """The end of the with statement raises the error that ended the pipeline meanwhile."""
    rig.destination = Once()
    Faulty.error = None
    pipeline = Pipeline(rig.config, store=Faulty("shop"), destination=rig.destination)
    try:
        with pytest.raises(NeedsOperator) as ended:
            run_into_a_fault(pipeline, db)
    finally:
        Faulty.error = None
    assert ended.value.code == "internal_error"


def run_into_a_fault(pipeline: Pipeline, db: Database) -> None:
    """Wait for something else than the pipeline, whose store fails meanwhile."""
    with pipeline:
        pipeline.run_until(pipeline.caught_up(), LIMIT_S)
        Faulty.error = ZeroDivisionError("a fault")
        db.execute("INSERT INTO orders VALUES (1)")
        assert pipeline._ended.wait(LIMIT_S)


class Closed(Recording):
    """Cannot be opened."""

    def startup(self) -> None:
        raise Transient("lake_away", "the lake does not answer")


def test_the_destination_is_opened_before_anything_is_made(rig: Rig, db: Database) -> None:
    """A destination that cannot be opened at the first start leaves the source as it was."""
    rig.destination = Closed()
    with pytest.raises(Transient):
        rig.start()
    assert at_source(db) == []


class Late(Recording):
    """Does not answer at first, as a server that has just started."""

    def __init__(self, refusals: int) -> None:
        super().__init__()
        self.refusals = refusals
        self.refused = threading.Event()

    def startup(self) -> None:
        self.refusals -= 1
        if self.refusals >= 0:
            self.refused.set()
            raise Transient("lake_away", "the lake does not answer")


def test_a_start_waits_for_the_destination(rig: Rig, db: Database, caplog: pytest.LogCaptureFixture) -> None:
    """A first start whose destination does not answer yet is retried as a table is, and every attempt is logged."""
    rig.config = replace(rig.config, retries=RetryLimits(max_attempts=3, delay_s=0.01))
    rig.destination = Late(3)
    with pytest.raises(Transient):
        rig.start()
    assert at_source(db) == []
    rig.destination = Late(2)
    rig.start()
    rig.wait_caught_up()
    assert caplog.text.count("the destination cannot be opened yet") == 4


def test_a_start_that_waits_for_the_destination_can_be_stopped(rig: Rig, db: Database) -> None:
    """The progress shows why the pipeline waits. A stop ends the start, which has made nothing at the source."""
    late = Late(1)
    rig.destination = late
    rig.config = replace(rig.config, retries=RetryLimits(max_attempts=2, delay_s=3600, max_delay_s=3600))
    pipeline = Pipeline(rig.config, store=rig.store(), destination=late)
    errors: list[BaseException] = []

    def start() -> None:
        try:
            pipeline.start()
        except Transient as error:
            errors.append(error)

    starts = threading.Thread(target=start)
    starts.start()
    assert late.refused.wait(LIMIT_S)
    error = until(lambda: pipeline.progress().error, alive=starts.is_alive)
    assert error is not None
    assert error.code == "lake_away"
    pipeline.stop()
    starts.join(LIMIT_S)
    assert not starts.is_alive()
    assert len(errors) == 1
    assert at_source(db) == []


class Sparkling(Recording):
    """Asks for the engine's Spark session."""

    capabilities = replace(Recording.capabilities, spark=True)


def test_a_machine_without_spark_makes_nothing(rig: Rig, db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing pyspark is an error with a hint. It ends no other driver and leaves the source as it was."""
    monkeypatch.setitem(sys.modules, "pyspark", None)
    rig.destination = Sparkling()
    pipeline = Pipeline(rig.config, store=rig.store(), destination=rig.destination)
    with pytest.raises(NeedsOperator) as refused:
        pipeline.start()
    assert refused.value.code == "pyspark_missing"
    assert "pip install 'levada[spark]'" in refused.value.hint
    assert at_source(db) == []
    assert rig.store().next_epoch() == 1


def test_staging_is_tried_before_anything_is_made(rig: Rig, db: Database, tmp_path: Path) -> None:
    """A staging area that cannot be written leaves the source as it was."""
    (tmp_path / "file").write_text("")
    rig.config = replace(rig.config, staging=replace(rig.config.staging, uri=f"file://{tmp_path}/file/staging"))
    with pytest.raises(Exception, match="staging"):
        rig.start()
    assert at_source(db) == []


def test_an_object_starts_once(rig: Rig, db: Database) -> None:
    """A second start is refused, while the pipeline runs and after its end, and does not disturb it."""
    rig.start()
    running = rig.running
    assert running is not None
    with pytest.raises(NeedsOperator) as refused:
        running.start()
    assert refused.value.code == "pipeline_already_started"
    db.execute("INSERT INTO orders VALUES (1)")
    rig.wait_caught_up()
    rig.stop()
    with pytest.raises(NeedsOperator) as refused:
        running.start()
    assert refused.value.code == "pipeline_already_started"
    assert running.progress().state is PipelineState.STOPPED  # paced: it has ended


def test_before_the_start(rig: Rig) -> None:
    """Progress is there, a stop does nothing, and what would be waited for without end is refused."""
    pipeline = Pipeline(rig.config, store=rig.store(), destination=rig.destination)
    assert pipeline.progress().state is PipelineState.STARTING  # paced: nothing has begun
    pipeline.stop()
    with pytest.raises(NeedsOperator) as refused:
        pipeline.run_until(lambda progress: False)
    assert refused.value.code == "pipeline_not_started"
    pipeline.start()
    pipeline.run_until(pipeline.caught_up(), LIMIT_S)
    pipeline.stop()
    pipeline.stop()


class Opening(Recording):
    """Holds its pipeline's start until a test lets it go on."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.opened = threading.Event(), threading.Event()

    def startup(self) -> None:
        self.reached.set()
        assert self.opened.wait(LIMIT_S)


def test_a_stop_while_it_starts_is_not_lost(rig: Rig) -> None:
    """A stop that comes while another thread starts the pipeline ends it as soon as it has started."""
    opening = Opening()
    pipeline = Pipeline(rig.config, store=rig.store(), destination=opening)
    starts = threading.Thread(target=pipeline.start)
    starts.start()
    assert opening.reached.wait(LIMIT_S)
    stops = threading.Thread(target=pipeline.stop)
    stops.start()
    assert pipeline._stopping.wait(LIMIT_S), "the stop was not taken"
    opening.opened.set()
    starts.join(LIMIT_S)
    stops.join(LIMIT_S)
    assert not stops.is_alive()
    assert pipeline.progress().state is PipelineState.STOPPED  # paced: it has ended


def test_a_second_driver_of_the_same_name_ends_the_first(rig: Rig, db: Database) -> None:
    """Two objects of one pipeline do not write side by side: the newer one has the epoch, and no row is lost."""
    rig.start()
    rig.wait_caught_up()
    first = rig.running
    assert first is not None
    rig.start()
    db.execute("INSERT INTO orders VALUES (1)")
    with pytest.raises(StaleEpoch):
        write_until_it_ends(db, first)
    rig.wait_caught_up()


def write_until_it_ends(db: Database, pipeline: Pipeline) -> None:
    """Give the pipeline something to write until it has ended."""
    numbers = count(2)

    def write() -> bool:
        with db.connect() as connection:
            connection.execute("INSERT INTO orders VALUES (%s)", [next(numbers)])
        return pipeline.wait(0)

    until(write)
