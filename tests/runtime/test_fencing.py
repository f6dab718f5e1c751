"""A process that was superseded while it was paused removes nothing that the newer one may use."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from tests.rigs.database import Database
from tests.rigs.recording import Recording
from tests.runtime.one_table import config_ref

from levada.copy.guard import GUARDS
from levada.errors import StaleEpoch, Transient
from levada.postgres.idle_connections import IdleReaders
from levada.postgres.publications import ensure_coverage
from levada.postgres.server import read_server
from levada.postgres.slots import create_slot, drop_slot, inspect_slot
from levada.runtime.config import PipelineConfig, PublicationConfig, SlotConfig, StagingConfig
from levada.runtime.config_ref import ConfigRef
from levada.runtime.copies.table_copy import TableCopy
from levada.runtime.source.cleanup_tables import drop_table
from levada.runtime.source.record import SourceRecord
from levada.runtime.tables.copy_plan import Recreate
from levada.runtime.tables.requests import CopySettings
from levada.schema import ReplicatedTableSchema, TableTarget
from levada.schema.table import IdentityKind
from levada.segments.log import SegmentLog
from levada.segments.staging import Staging
from levada.stores import MemoryStore
from levada.values import Lsn, QualifiedTable, SnapshotId, TableId, TableMode

SCHEMA = ReplicatedTableSchema(
    id=TableId(1), name=QualifiedTable("public", "orders"), columns=(), identity=IdentityKind.PRIMARY_KEY,
    identity_attnums=(), key=(), snapshot_id=SnapshotId(0),
)  # fmt: skip

SETTINGS = CopySettings(SCHEMA.name, TableMode.UPSERT, "", frozenset(), "", SCHEMA.name)


@pytest.fixture
def superseded() -> MemoryStore:
    """The store as a process has it whose pipeline another process has taken over."""
    store = MemoryStore("shop")
    epoch = store.next_epoch()
    store.store_table_schema(SCHEMA)
    store.join(epoch - 1)
    return store


def test_a_table_at_the_destination_stays(superseded: MemoryStore, tmp_path: Path) -> None:
    """Also at a destination that keeps no epochs, the table of the newer driver is not dropped."""
    destination = Recording()
    copier = TableCopy(config_ref(tmp_path), superseded, destination, cast(Any, None), 1, cast(Any, None))
    with pytest.raises(StaleEpoch):
        copier.make_room(SCHEMA.id, SCHEMA.name, Recreate(SETTINGS))
    assert destination.dropped == []


def test_cleanup_drops_no_table_of_an_engine_that_has_started_since(superseded: MemoryStore) -> None:
    """It has taken the pipeline over before, and an engine that starts after that takes it over again."""
    destination = Recording()
    with pytest.raises(StaleEpoch):
        drop_table(destination, TableTarget.of(SCHEMA), superseded)
    assert destination.dropped == []


def test_staged_files_stay(superseded: MemoryStore, tmp_path: Path) -> None:
    """A file that no manifest names may be the newer driver's open segment."""
    staging = Staging.open(str(tmp_path))
    staging.publish("shop/open.parquet", b"rows", naming=())
    with pytest.raises(StaleEpoch):
        SegmentLog(staging, "shop").collect_garbage(superseded.require_epoch)
    assert list(staging.list("shop")) == ["open.parquet"]


def test_slot_and_publication_stay(superseded: MemoryStore, db: Database) -> None:
    """The slot is not dropped, and the publication is not changed."""
    db.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    orders = {QualifiedTable("public", "orders")}
    with db.connect() as connection:
        create_slot(connection, f"levada_{db.name}")
        with pytest.raises(StaleEpoch):
            drop_slot(connection, f"levada_{db.name}", check=superseded.require_epoch)
        assert inspect_slot(connection, f"levada_{db.name}") is not None
        with pytest.raises(StaleEpoch):
            ensure_coverage(connection, "p", orders, manage=True, check=superseded.require_epoch)
        assert drop_slot(connection, f"levada_{db.name}")
    assert db.query("SELECT count(*) FROM pg_publication") == [(0,)]


def test_a_copy_waits_for_a_verified_server(db: Database, tmp_path: Path) -> None:
    """No copy reads a server that was restarted, or is another one, before the stream has verified its history."""
    db.execute("CREATE TABLE orders (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE orders")
    [(orders,)] = db.query("SELECT 'orders'::regclass::oid")
    config = PipelineConfig(
        "shop", db.connection, SlotConfig("levada_shop"), PublicationConfig("p"), StagingConfig(f"file://{tmp_path}"),
        tmp_path, selects=lambda table: True,
    )  # fmt: skip
    store, destination = MemoryStore("shop"), Recording()
    epoch = store.next_epoch()
    server = read_server(db.connection, "levada_shop").identity
    SourceRecord(store).begin(replace(server, started_at="an earlier start"), Lsn(0))
    sessions = IdleReaders(db.connection, GUARDS)
    copier = TableCopy(ConfigRef(config), store, destination, cast(Any, None), epoch, sessions)
    with pytest.raises(Transient) as refused, sessions:
        copier.run(TableId(orders), SCHEMA.name, Recreate(SETTINGS), threading.Event(), lambda rows: None)
    assert refused.value.code == "source_unverified"
    SourceRecord(store).verified(server)
    with db.connect() as connection:
        SourceRecord(store).require_verified(connection)
