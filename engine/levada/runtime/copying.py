"""The copy of one table, from its snapshot to a stamped commit: where it is to be, or beside the one that is there."""

from __future__ import annotations

import logging
import threading
from collections.abc import MutableMapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from psycopg import sql

from levada.copy.snapshot import SnapshotRows
from levada.destinations.interface import Destination, Ordering, TableSettings
from levada.errors import LevadaError, NeedsOperator, Transient
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

_log = logging.getLogger(__name__)


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

        A table that is there serves until its copy takes its place, if the destination can do so; else it is dropped
        first, with whatever an earlier attempt left. Raise Transient ``copy_cancelled`` once ``cancelled`` is set.
        """
        config = self.live.now
        # Before the snapshot: a version that the stream tells after it belongs to the copy.
        self.store.clear_table_copy_state(table)
        with export_snapshot(config.source, copy_slot_name(config.name, table)) as snapshot:
            rows = self._rows(snapshot, table, name, cancelled)
            mark = Watermark(config.name, self.epoch, snapshot.lsn)
            self.store.store_table_schema(rows.schema)
            started(rows)
            if not self._replaced(config, name, rows, mark):
                self.destination.drop_table_for_copy(rows.schema)
                self._settle(config, rows.schema, name)
                self.destination.write_table_rows(rows.schema, rows, mark)
            return Copied(rows.schema, snapshot.lsn)

    def run_beside(
        self,
        table: TableId,
        name: QualifiedTable,
        cancelled: threading.Event,
        started: Callable[[SnapshotRows, Lsn], None],
    ) -> Copied | None:
        """Copy the table beside itself, as `run` does otherwise; None if there is no table that serves meanwhile."""
        config = self.live.now
        with export_snapshot(config.source, copy_slot_name(config.name, table)) as snapshot:
            rows = self._rows(snapshot, table, name, cancelled)
            started(rows, snapshot.lsn)
            mark = Watermark(config.name, self.epoch, snapshot.lsn)
            copied = self.destination.copy_replacement(rows.schema, rows, mark)
            return Copied(rows.schema, snapshot.lsn) if copied else None

    def _replaced(self, config: PipelineConfig, name: QualifiedTable, rows: SnapshotRows, mark: Watermark) -> bool:
        """Copy to where the table is, in one step for its readers; False if that is no way to what is wanted."""
        wanted, before = MadeAs.of(config, name), made(self.store.get_table_controls(rows.schema.id))
        if not can_replace(self.destination) or before is None:
            return False
        if (before.destination_table, before.depends_on) != (wanted.destination_table, wanted.depends_on):
            return False
        try:
            self._note(wanted, rows.schema, name)
            if not self.destination.copy_replacement(rows.schema, rows, mark):
                return False
            if self.destination.swap_replacement(rows.schema.id, mark):
                return True
        except BaseException:
            self._drop_replacement(rows.schema)
            raise
        raise Transient("replacement_lost", f"the new copy of {name} no longer fits: the table was changed meanwhile")

    def _drop_replacement(self, schema: ReplicatedTableSchema) -> None:
        try:
            self.destination.drop_replacement(schema.id)
        except LevadaError as error:
            _log.warning("what was copied of %s stays behind until it is copied again: %s", schema.name, error)

    def _rows(
        self, snapshot: ExportedSnapshot, table: TableId, name: QualifiedTable, cancelled: threading.Event
    ) -> SnapshotRows:
        config = self.live.now
        published, schema = self._read_schema(snapshot, table, name)
        return SnapshotRows(
            self.spark,
            config.source,
            snapshot,
            published,
            schema,
            connections=config.copy_connections,
            policy=config.on_unrepresentable,
            cancelled=cancelled,
        )

    def _settle(self, config: PipelineConfig, schema: ReplicatedTableSchema, name: QualifiedTable) -> None:
        """Let what is said of the table now hold for its copy, after what was there under other settings is gone."""
        wanted = MadeAs.of(config, name)
        before = made(self.store.get_table_controls(schema.id))
        if before == wanted:
            return
        self._note(wanted, schema, name)
        if before is not None:
            self.destination.drop_table_for_copy(schema)

    def _note(self, wanted: MadeAs, schema: ReplicatedTableSchema, name: QualifiedTable) -> None:
        controls = self.store.get_table_controls(schema.id) or TableControls()
        self.store.store_table_controls(schema.id, replace(controls, made_as=wanted.to_text()))
        self.told[name] = TableSettings(wanted.mode, wanted.destination_table)

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
