"""A process that was superseded while it was paused removes nothing that the newer one may use."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from tests.conftest import Database
from tests.runtime.recording import Recording

from levada.errors import StaleEpoch
from levada.postgres.publications import ensure_coverage
from levada.postgres.slots import create_slot, drop_slot, inspect_slot
from levada.runtime.copying import TableCopy
from levada.runtime.fencing import require_epoch
from levada.schema import ReplicatedTableSchema
from levada.schema.table import IdentityKind
from levada.segments.log import SegmentLog
from levada.segments.staging import Staging
from levada.stores import MemoryStore
from levada.values import QualifiedTable, SnapshotId, TableId

SCHEMA = ReplicatedTableSchema(
    id=TableId(1), name=QualifiedTable("public", "orders"), columns=(), identity=IdentityKind.PRIMARY_KEY,
    identity_attnums=(), key=(), snapshot_id=SnapshotId(0),
)  # fmt: skip


@pytest.fixture
def superseded() -> MemoryStore:
    """The store as a process has it whose pipeline another process has taken over."""
    store = MemoryStore("shop")
    store.join(store.next_epoch() - 1)
    return store


def test_a_table_at_the_destination_stays(superseded: MemoryStore) -> None:
    """Also at a destination that keeps no epochs, the table of the newer driver is not dropped."""
    destination = Recording()
    copier = TableCopy(cast(Any, None), superseded, destination, {}, cast(Any, None), 1)
    with pytest.raises(StaleEpoch):
        copier.drop(SCHEMA, SCHEMA.name)
    assert destination.dropped == []


def test_staged_files_stay(superseded: MemoryStore, tmp_path: Path) -> None:
    """A file that no manifest names may be the newer driver's open segment."""
    staging = Staging.open(str(tmp_path))
    staging.publish("shop/open.parquet", b"rows", naming=())
    with pytest.raises(StaleEpoch):
        SegmentLog(staging, "shop").collect_garbage(lambda: require_epoch(superseded))
    assert list(staging.list("shop")) == ["open.parquet"]


def test_slot_and_publication_stay(superseded: MemoryStore, db: Database) -> None:
    """The slot is not dropped, and the publication is not changed."""
    db.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    orders = {QualifiedTable("public", "orders")}
    with db.connect() as connection:
        create_slot(connection, f"levada_{db.name}")
        with pytest.raises(StaleEpoch):
            drop_slot(connection, f"levada_{db.name}", check=lambda: require_epoch(superseded))
        assert inspect_slot(connection, f"levada_{db.name}") is not None
        with pytest.raises(StaleEpoch):
            ensure_coverage(connection, "p", orders, manage=True, check=lambda: require_epoch(superseded))
        assert drop_slot(connection, f"levada_{db.name}")
    assert db.query("SELECT count(*) FROM pg_publication") == [(0,)]
