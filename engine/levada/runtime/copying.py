"""The initial copy of one table, from an empty destination to a stamped commit."""

from __future__ import annotations

import threading
from collections.abc import MutableMapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from psycopg import sql

from levada.copy.snapshot import SnapshotRows
from levada.destinations.interface import Destination, Ordering, TableSettings
from levada.errors import NeedsOperator
from levada.postgres.catalog import published_tables, read_table_schema
from levada.postgres.slots import ExportedSnapshot, copy_slot_name, export_snapshot
from levada.runtime.config import PipelineConfig
from levada.runtime.controls import MadeAs, made
from levada.runtime.live import LiveConfig
from levada.schema import ReplicatedTableSchema
from levada.stores.interface import PipelineStore, TableControls
from levada.values import Lsn, QualifiedTable, TableId, Watermark

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from levada.postgres.catalog import PublishedTable


def can_replace(destination: Destination) -> bool:
    """Tell whether the destination can copy a table again beside itself."""
    return destination.capabilities.replacement and destination.capabilities.ordering is Ordering.TABLE


@dataclass(frozen=True, slots=True)
class Copied:
    """A copy that the destination holds durably: what it holds, as of which LSN."""

    schema: ReplicatedTableSchema
    lsn: Lsn


@dataclass(frozen=True, slots=True)
class TableCopy:
    """What it takes to copy tables of one pipeline."""

    live: LiveConfig
    store: PipelineStore
    destination: Destination
    told: MutableMapping[QualifiedTable, TableSettings]
    """What the destination was told of tables, and reads; kept in step with what each is copied as."""
    spark: SparkSession
    epoch: int

    def run(
        self,
        table: TableId,
        name: QualifiedTable,
        cancelled: threading.Event,
        started: Callable[[SnapshotRows], None],
    ) -> Copied:
        """Copy the table under a snapshot of its own; ``started`` is handed what tells its progress.

        Whatever an earlier attempt left at the destination is dropped first. Raise Transient ``copy_cancelled`` once
        ``cancelled`` is set.
        """
        config = self.live.now
        with export_snapshot(config.source, copy_slot_name(config.name, table)) as snapshot:
            published, schema = self._read_schema(snapshot, table, name)
            self.destination.drop_table_for_copy(schema)
            self._settle(config, schema, name)
            self.store.clear_table_copy_state(table)
            self.store.store_table_schema(schema)
            rows = SnapshotRows(
                self.spark,
                config.source,
                snapshot,
                published,
                schema,
                connections=config.copy_connections,
                policy=config.on_unrepresentable,
                cancelled=cancelled,
            )
            started(rows)
            self.destination.write_table_rows(schema, rows, Watermark(config.name, self.epoch, snapshot.lsn))
            return Copied(schema, snapshot.lsn)

    def _settle(self, config: PipelineConfig, schema: ReplicatedTableSchema, name: QualifiedTable) -> None:
        """Let what is said of the table now hold for its copy, after what was there under other settings is gone."""
        wanted = MadeAs.of(config, name)
        controls = self.store.get_table_controls(schema.id) or TableControls()
        before = made(controls)
        if before == wanted:
            return
        self.store.store_table_controls(schema.id, replace(controls, made_as=wanted.to_text()))
        self.told[name] = TableSettings(wanted.mode, wanted.destination_table)
        if before is not None:
            self.destination.drop_table_for_copy(schema)

    def _read_schema(
        self, snapshot: ExportedSnapshot, table: TableId, name: QualifiedTable
    ) -> tuple[PublishedTable, ReplicatedTableSchema]:
        config = self.live.now
        with config.source.connect(application="copy") as connection, connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(snapshot.name))
            found = [t for t in published_tables(connection, config.publication.name) if t.id == table]
            if not found:
                raise NeedsOperator(
                    "table_not_published",
                    f"table {name} left publication {config.publication.name} before it was copied",
                    hint=f"ALTER PUBLICATION {config.publication.name} ADD TABLE {name};",
                )
            schema = read_table_schema(
                connection,
                table,
                columns=found[0].column_attnums,
                exclude=self.live.excluded_columns(name),
                policy=config.on_unrepresentable,
            )
            return found[0], schema
