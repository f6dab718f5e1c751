"""A destination of one's own with a versioned table for each copy, whose names and schema changes are in the store."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.rigs.database import Database
from tests.rigs.pipeline import Only, Rig
from tests.rigs.recording import Recording

from levada.copy.rows import TableRows
from levada.destinations import TableTarget
from levada.errors import Permanent
from levada.schema import ReplicatedTableSchema
from levada.segments.batch import EventBatch
from levada.stores import (
    DestinationMetadataStore,
    DestinationTableMetadata,
    MemoryStore,
    PipelineStore,
    PostgresStore,
)
from levada.values import Durability, TableId, Watermark


class Service(Recording):
    """A service whose tables are numbered, and whose DDL is no part of a commit. It outlives the pipeline.

    Each copy makes the next table, ``orders_1``, ``orders_2``. The destination knows the present one from the store.
    """

    def __init__(self) -> None:
        super().__init__()
        self.columns: dict[str, list[str]] = {}
        self.recovered: list[str] = []
        self.dies_in_ddl = False
        self.store: DestinationMetadataStore | None = None

    def keep_metadata_in(self, store: DestinationMetadataStore) -> None:
        self.store = store

    def metadata(self, table: TableId) -> DestinationTableMetadata | None:
        assert self.store is not None
        return self.store.get_destination_table_metadata(table)

    def keep(self, table: TableId, metadata: DestinationTableMetadata | None) -> None:
        assert self.store is not None
        self.store.store_destination_table_metadata(table, metadata)

    def drop_table_for_copy(self, target: TableTarget, epoch: int | None = None) -> None:
        super().drop_table_for_copy(target, epoch)
        if (known := self.metadata(target.id)) is not None:
            self.columns.pop(known.name, None)

    def write_table_rows(self, target: TableTarget, rows: TableRows, mark: Watermark) -> Durability:
        former = self.metadata(target.id)
        number = 1 + (0 if former is None else int(former.name.rpartition("_")[2]))
        name = f"{target.name.name}_{number}"
        self.columns[name] = [column.name for column in target.schema.columns]
        self.keep(target.id, DestinationTableMetadata(name, target.schema.snapshot_id))
        return super().write_table_rows(target, rows, mark)

    def write_events(self, events: EventBatch, mark: Watermark) -> Durability:
        for table in events.tables:
            self.alter(table, events.changes(table).schema)
        return super().write_events(events, mark)

    def alter(self, table: TableId, schema: ReplicatedTableSchema) -> None:
        """Give the table the columns of a version, unless it has them. A change by half is found and done again."""
        known = self.metadata(table)
        assert known is not None
        if known.applying is not None:
            self.recovered.append(known.name)
        if known.applied == schema.snapshot_id and known.applying is None:
            return
        self.keep(table, replace(known, applying=schema.snapshot_id))
        if self.dies_in_ddl:
            raise Permanent("killed", "the process ends in the middle of the schema change")
        self.columns[known.name] = [column.name for column in schema.columns]
        self.keep(table, replace(known, applied=schema.snapshot_id, applying=None))


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["memory", "postgres"])
def test_a_destination_keeps_its_metadata(rig: Rig, db: Database, kind: str) -> None:
    """Names of copies and a schema change by half are found after a restart, and leave with the table."""

    def postgres() -> PipelineStore:
        return PostgresStore(db.connection, "shop")

    rig.store = postgres if kind == "postgres" else lambda: MemoryStore("shop", rig.storage)
    rig.change(selects=Only("orders"))
    rig.destination = service = Service()
    rig.start()
    rig.wait_caught_up()
    assert service.columns == {"orders_1": ["id", "note", "secret"]}
    assert rig.running is not None
    rig.running.resync()
    rig.wait(lambda p: service.copies_of("orders") == 2)
    rig.wait_caught_up()
    assert service.columns == {"orders_2": ["id", "note", "secret"]}
    service.dies_in_ddl = True
    db.execute("ALTER TABLE orders ADD added int", "INSERT INTO orders VALUES (11, 'n', 's', 7)")
    with pytest.raises(Permanent, match="killed"):
        rig.wait(lambda p: False)
    rig.running = None
    service.dies_in_ddl = False
    rig.start()
    rig.wait_caught_up()
    assert service.recovered == ["orders_2"]
    assert service.columns == {"orders_2": ["id", "note", "secret", "added"]}
    [table] = service.marks
    known = service.metadata(table)
    assert known is not None
    assert (known.name, known.applying) == ("orders_2", None)
    rig.change(selects=Only("items"))
    rig.wait(lambda p: [t.table.name for t in p.tables] == ["items"])
    assert service.metadata(table) is None
