"""A store that has lost the state of its pipeline."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.rigs.database import Database
from tests.rigs.pipeline import Only, Rig

from levada.errors import NeedsOperator, SlotLost
from levada.runtime.config import PipelineConfig, PublicationConfig, SlotConfig, StagingConfig
from levada.runtime.resources.staging import open_staging
from levada.runtime.source.preparation import prepare_source
from levada.runtime.source.record import SourceRecord
from levada.runtime.tables.startup_requests import apply_requested_resyncs
from levada.segments.log import SegmentLog
from levada.status import RetryPolicy
from levada.stores import MemoryStore, PipelineStore, PostgresStore
from levada.stores.interface import TableAction
from levada.stores.phases import Errored, Init, Ready
from levada.values import Lsn, TableId


class Killed(BaseException):
    """Stands for kill -9."""


def killed(*_: object, **__: object) -> None:
    """End here, as by kill -9."""
    raise Killed


def start(config: PipelineConfig, store: PipelineStore) -> None:
    """Begin as a pipeline does, up to the slot."""
    store.next_epoch()
    store.load_table_replication_states()
    store.load_fingerprints()
    apply_requested_resyncs(store)
    log = SegmentLog(open_staging(config.staging), config.name)
    prepare_source(config, store, SourceRecord(store), log)


@pytest.fixture
def config(db: Database, tmp_path: Path) -> PipelineConfig:
    """A pipeline over a database with one table."""
    db.execute("CREATE TABLE t (id int PRIMARY KEY)")
    return PipelineConfig(
        "shop", db.connection, SlotConfig(f"levada_{db.name}"), PublicationConfig("levada_shop"),
        StagingConfig(f"file://{tmp_path / 'staging'}"), tmp_path, selects=lambda table: table.schema == "public",
    )  # fmt: skip


def test_lost_store_holds_the_start(db: Database, config: PipelineConfig, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is copied over what the lake has before a resync is requested, or the policy says so."""
    start(config, PostgresStore(db.connection, "shop"))
    start(config, PostgresStore(db.connection, "shop"))
    db.execute("DROP SCHEMA levada CASCADE")
    for _ in range(2):
        with pytest.raises(NeedsOperator) as raised:
            start(config, PostgresStore(db.connection, "shop"))
        assert raised.value.code == "store_empty"
        assert "levada resync MANIFEST --all" in raised.value.hint
    start(config, MemoryStore("shop"))
    start(replace(config, slot=replace(config.slot, resync_when_lost=True)), PostgresStore(db.connection, "shop"))
    assert "state was lost" in caplog.text
    [(oid,)] = db.query("SELECT 't'::regclass::oid")
    PostgresStore(db.connection, "shop").request_table_action(TableId(oid), TableAction.RESYNC)
    start(config, PostgresStore(db.connection, "shop"))


def test_staged_changes_are_evidence_too(db: Database, config: PipelineConfig) -> None:
    """If the slot is gone as well, the staging area shows that the pipeline has run."""
    SegmentLog(open_staging(config.staging), "shop").writer(1, Lsn(50)).commit(Lsn(100))
    with pytest.raises(NeedsOperator) as raised:
        start(config, PostgresStore(db.connection, "shop"))
    assert raised.value.code == "store_empty"


def test_an_engine_killed_as_it_makes_its_slot_starts_again(db: Database, config: PipelineConfig) -> None:
    """The slot of a first start that came no further is no sign of a lost store.

    The server ends the statement that makes the slot after its client is gone.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SourceRecord, "begin", killed)
        with pytest.raises(Killed):
            start(config, PostgresStore(db.connection, "shop"))
    assert db.query("SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s", config.slot.name) == [(1,)]
    start(config, PostgresStore(db.connection, "shop"))


def test_a_lost_slot_holds_only_for_tables_that_a_resync_can_name(db: Database, config: PipelineConfig) -> None:
    """A table that is not published any more, or dropped, does not keep the start from a resync of all the others.

    One that was parked for good stays parked.
    """
    db.execute("CREATE TABLE parked (id int PRIMARY KEY)", "CREATE TABLE left_out (id int PRIMARY KEY)")
    config = replace(config, selects=lambda table: table.name in ("t", "parked"))
    start(config, PostgresStore(db.connection, "shop"))
    ids = {name: TableId(oid) for name, oid in db.query(
        "SELECT relname, oid::bigint FROM pg_class WHERE relname IN ('t', 'parked', 'left_out')"
    )}  # fmt: skip
    void = Errored(
        code="segment_missing", reason="a segment is lost", solution="resync", retry_policy=RetryPolicy.NO_RETRY,
        attempts=1, next_retry=None,
    )  # fmt: skip
    store = PostgresStore(db.connection, "shop")
    store.next_epoch()
    dropped = TableId(4_000_000_000)
    store.update_table_replication_states(
        {ids["t"]: Ready(), ids["left_out"]: Ready(), dropped: Ready(), ids["parked"]: void}
    )
    db.query("SELECT pg_drop_replication_slot(%s)", config.slot.name)
    with pytest.raises(SlotLost) as raised:
        start(config, PostgresStore(db.connection, "shop"))
    assert (raised.value.code, "needed by 1 table" in raised.value.message) == ("slot_missing", True)
    PostgresStore(db.connection, "shop").request_table_action(ids["t"], TableAction.RESYNC)
    start(config, PostgresStore(db.connection, "shop"))
    store = PostgresStore(db.connection, "shop")
    store.load_table_replication_states()
    phases = dict(store.get_table_replication_states())
    assert phases.pop(ids["parked"]) == void
    assert set(map(type, phases.values())) == {Init}


def test_staged_rows_need_the_columns_in_the_store(db: Database, tmp_path: Path) -> None:
    """A table whose columns are gone from the store parks before it applies a row. A resync stores them again."""
    db.execute("CREATE TABLE orders (id int PRIMARY KEY)", "INSERT INTO orders VALUES (1)")
    rig = Rig(db, tmp_path)
    rig.config = replace(rig.config, selects=Only("orders"))
    rig.store = lambda: PostgresStore(db.connection, "shop")
    try:
        rig.start()
        rig.wait_caught_up()
        rig.stop()
        db.execute("DELETE FROM levada.documents WHERE kind = 'schema'", "INSERT INTO orders VALUES (2)")
        rig.start()
        parked = rig.wait(lambda p: bool(p.tables) and p.tables[0].error is not None).tables[0].error
        assert parked is not None
        assert parked.code == "schema_version_missing"
        assert "the store no longer has the columns of the table with OID" in parked.reason
        rig.say("orders", resync_nonce=1)
        rig.wait_caught_up()
    finally:
        rig.stop()
    assert rig.destination.copies_of("orders") == 2


def test_a_table_restored_to_an_earlier_state_is_copied_again(db: Database, tmp_path: Path) -> None:
    """Its later changes are applied and removed. The error names the restore as well as a lost segment."""
    db.execute("CREATE TABLE orders (id int PRIMARY KEY)", "INSERT INTO orders VALUES (1)")
    rig = Rig(db, tmp_path)
    rig.config = replace(rig.config, selects=Only("orders"))
    try:
        rig.start()
        rig.wait_caught_up()
        saved = dict(rig.destination.marks)
        db.execute("INSERT INTO orders VALUES (2)")
        rig.wait(lambda p: p.tables[0].rows_applied == 1)
        rig.wait_caught_up()
        rig.stop()
        rig.destination.marks = saved
        rig.start()
        parked = rig.wait(lambda p: bool(p.tables) and p.tables[0].error is not None).tables[0].error
        assert parked is not None
        assert (parked.code, parked.solution) == ("segment_missing", "levada resync MANIFEST public.orders")
        assert "the table at the destination was restored or rolled back" in parked.reason
        rig.say("orders", resync_nonce=1)
        rig.wait(lambda p: p.tables[0].error is None)
        rig.wait_caught_up()
    finally:
        rig.stop()
    assert rig.destination.copies_of("orders") == 2
