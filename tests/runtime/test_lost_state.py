"""A store that has lost the state of its pipeline."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.conftest import Database

from levada.errors import NeedsOperator
from levada.runtime.asked_before import take_requested_resyncs
from levada.runtime.config import PipelineConfig, PublicationConfig, SlotConfig, StagingConfig
from levada.runtime.source import prepare_source
from levada.runtime.source_record import SourceRecord
from levada.runtime.staging_area import open_staging
from levada.segments.log import SegmentLog
from levada.stores import MemoryStore, PipelineStore, PostgresStore
from levada.stores.interface import TableAction
from levada.values import Lsn, TableId


def start(config: PipelineConfig, store: PipelineStore) -> None:
    """Begin as a pipeline does, up to the slot."""
    store.next_epoch()
    store.load_table_replication_states()
    store.load_fingerprints()
    take_requested_resyncs(store)
    log = SegmentLog(open_staging(config.staging), config.name)
    prepare_source(config, store, SourceRecord(store), log)


def test_lost_store_holds_the_start(db: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is copied over what the lake has before a resync is requested, or the policy says so."""
    db.execute("CREATE TABLE t (id int PRIMARY KEY)")
    slot = SlotConfig(f"levada_{db.name}")
    config = PipelineConfig(
        "shop", db.connection, slot, PublicationConfig("levada_shop"), StagingConfig(str(tmp_path)), tmp_path,
        selects=lambda table: table.schema == "public",
    )  # fmt: skip
    start(config, PostgresStore(db.connection, "shop"))
    start(config, PostgresStore(db.connection, "shop"))
    db.execute("DROP SCHEMA levada CASCADE")
    for _ in range(2):
        with pytest.raises(NeedsOperator) as raised:
            start(config, PostgresStore(db.connection, "shop"))
        assert raised.value.code == "store_empty"
        assert "levada resync MANIFEST --all" in raised.value.hint
    start(config, MemoryStore("shop"))
    start(replace(config, slot=replace(slot, resync_when_lost=True)), PostgresStore(db.connection, "shop"))
    assert "state was lost" in caplog.text
    [(oid,)] = db.query("SELECT 't'::regclass::oid")
    PostgresStore(db.connection, "shop").request_table_action(TableId(oid), TableAction.RESYNC)
    start(config, PostgresStore(db.connection, "shop"))


def test_staged_changes_are_evidence_too(db: Database, tmp_path: Path) -> None:
    """Where the slot is gone as well, the staging area shows that the pipeline has run."""
    db.execute("CREATE TABLE t (id int PRIMARY KEY)")
    config = PipelineConfig(
        "shop", db.connection, SlotConfig(f"levada_{db.name}"), PublicationConfig("levada_shop"),
        StagingConfig(str(tmp_path)), tmp_path, selects=lambda table: table.schema == "public",
    )  # fmt: skip
    SegmentLog(open_staging(config.staging), "shop").writer(1, Lsn(50)).commit(Lsn(100))
    with pytest.raises(NeedsOperator) as raised:
        start(config, PostgresStore(db.connection, "shop"))
    assert raised.value.code == "store_empty"
