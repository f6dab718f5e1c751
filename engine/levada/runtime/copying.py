"""The initial copy of one table, from an empty destination to a stamped commit."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from psycopg import sql

from levada.copy.snapshot import SnapshotRows
from levada.destinations import Destination
from levada.errors import NeedsOperator
from levada.postgres.catalog import published_tables, read_table_schema
from levada.postgres.slots import ExportedSnapshot, copy_slot_name, export_snapshot
from levada.runtime.config import PipelineConfig
from levada.schema import ReplicatedTableSchema
from levada.stores.interface import PipelineStore
from levada.values import Lsn, QualifiedTable, TableId, Watermark

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from levada.postgres.catalog import PublishedTable


@dataclass(frozen=True, slots=True)
class Copied:
    """A copy that the destination holds durably: what it holds, as of which LSN."""

    schema: ReplicatedTableSchema
    lsn: Lsn


@dataclass(frozen=True, slots=True)
class TableCopy:
    """What it takes to copy tables of one pipeline."""

    config: PipelineConfig
    store: PipelineStore
    destination: Destination
    spark: SparkSession
    epoch: int
    cancelled: threading.Event

    def run(self, table: TableId, name: QualifiedTable, started: Callable[[SnapshotRows], None]) -> Copied:
        """Copy the table under a snapshot of its own; ``started`` is handed what tells its progress.

        Whatever an earlier attempt left at the destination is dropped first.
        """
        slot = copy_slot_name(self.config.name, table)
        with export_snapshot(self.config.source, slot) as snapshot:
            published, schema = self._read_schema(snapshot, table, name)
            self.destination.drop_table_for_copy(schema)
            self.store.clear_table_copy_state(table)
            self.store.store_table_schema(schema)
            rows = SnapshotRows(
                self.spark,
                self.config.source,
                snapshot,
                published,
                schema,
                connections=self.config.copy_connections,
                policy=self.config.on_unrepresentable,
                cancelled=self.cancelled,
            )
            started(rows)
            self.destination.write_table_rows(schema, rows, Watermark(self.config.name, self.epoch, snapshot.lsn))
            return Copied(schema, snapshot.lsn)

    def _read_schema(
        self, snapshot: ExportedSnapshot, table: TableId, name: QualifiedTable
    ) -> tuple[PublishedTable, ReplicatedTableSchema]:
        with self.config.source.connect(application="copy") as connection, connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(snapshot.name))
            found = [t for t in published_tables(connection, self.config.publication.name) if t.id == table]
            if not found:
                raise NeedsOperator(
                    "table_not_published",
                    f"table {name} left publication {self.config.publication.name} before it was copied",
                    hint=f"ALTER PUBLICATION {self.config.publication.name} ADD TABLE {name};",
                )
            schema = read_table_schema(
                connection,
                table,
                columns=found[0].column_attnums,
                exclude=self.config.excluded_columns(name),
                policy=self.config.on_unrepresentable,
            )
            return found[0], schema
