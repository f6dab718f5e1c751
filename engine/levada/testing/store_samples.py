"""Facts of every kind for the conformance suite of a store."""

from __future__ import annotations

from datetime import UTC, datetime

from levada.schema import Column, IdentityKind, ReplicatedTableSchema, resolve_type
from levada.status import CutPhase, RetryPolicy
from levada.stores import Cut, DestinationTableMetadata, PipelineStore, TableAction, TableControls, table_worker
from levada.stores.phases import DataSync, Errored, Init
from levada.values import Lsn, QualifiedTable, SnapshotId, TableId

ORDERS, ITEMS = TableId(16402), TableId(4_000_000_000)

ERRORED = Errored(
    code="value_unrepresentable",
    reason="column price: a NUL \x00, a lone surrogate \udc80, an ü",
    solution="set spec.onUnrepresentable",
    retry_policy=RetryPolicy.TIMED_RETRY,
    attempts=3,
    next_retry=datetime(2026, 11, 21, 8, 30, 0, 250_000, tzinfo=UTC),
)

CUT = Cut(
    name="monthly.2026-11",
    lsn=Lsn(2**64 - 1),
    at=datetime(2026, 11, 21, 8, 30, 0, 250_000, tzinfo=UTC),
    committed_at=datetime(2026, 11, 21, 8, 29, tzinfo=UTC),
    phase=CutPhase.PENDING,
    tables=(ORDERS, ITEMS),
    left_out=((ITEMS, "suspended"),),
)


METADATA = DestinationTableMetadata("orders_v2", SnapshotId(7))


def schema(version: int, table: TableId = ORDERS) -> ReplicatedTableSchema:
    """Return a version of a table, which has its number in its name."""
    columns = tuple(
        Column(attnum, f"column {attnum}", resolve_type(oid, typmod), "a type", oid, typmod)
        for attnum, (oid, typmod) in enumerate([(20, -1), (1700, 655366), (1007, -1)], start=1)
    )
    name = QualifiedTable("public", f"t{version}")
    return ReplicatedTableSchema(table, name, columns, IdentityKind.PRIMARY_KEY, (1,), (1,), SnapshotId(version))


def loaded(store: PipelineStore) -> PipelineStore:
    """Fill the store's cache, as a driver does at its start."""
    store.load_table_replication_states()
    store.load_table_schemas()
    store.load_table_controls()
    store.load_fingerprints()
    store.load_cuts()
    return store


def fill(store: PipelineStore) -> None:
    """Write something of everything for two tables."""
    for table in (ORDERS, ITEMS):
        store.update_table_replication_states({table: Init()})
        store.update_table_replication_states({table: DataSync()})
        store.store_table_schema(schema(0, table))
        store.upsert_replication_progress(table_worker(table), Lsn(5))
        store.store_table_controls(table, TableControls(3, 4, "as it was"))
        store.store_fingerprint(table_worker(table), "as it was")
        store.store_destination_table_metadata(table, METADATA)
        store.request_table_action(table, TableAction.RETRY)
    store.upsert_replication_progress("capture", Lsn(6))
    store.store_fingerprint("slot", "as it was")
    store.store_cut(CUT)


def kept(store: PipelineStore, table: TableId) -> tuple[object, ...]:
    """Return everything of a table except its history and its requests."""
    return (
        store.get_table_replication_state(table),
        store.get_table_schema(table, SnapshotId(0)),
        store.get_replication_progress(table_worker(table)),
        store.get_table_controls(table),
        store.get_fingerprint(table_worker(table)),
        store.get_destination_table_metadata(table),
    )


FULL = (
    DataSync(),
    schema(0, ITEMS),
    Lsn(5),
    TableControls(3, 4, "as it was"),
    "as it was",
    METADATA,
)
