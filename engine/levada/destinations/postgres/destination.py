"""`PostgresDestination`, which writes tables to a PostgreSQL database."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import ClassVar, Self, cast

import psycopg
import pyarrow as pa
from pydantic import BaseModel

from levada.copy.rows import TableRows
from levada.destinations.collisions import TargetName
from levada.destinations.context import DestinationContext
from levada.destinations.erasure import Erased, Erasure
from levada.destinations.fenced import FencedDestination, TableState, TableStates, missing, require_epoch
from levada.destinations.groups import GroupWriter
from levada.destinations.interface import Capabilities, OnSchemaChange, Ordering
from levada.destinations.ownership import Owner
from levada.destinations.postgres import shadow_copy
from levada.destinations.postgres.apply import apply_table, evolve, write_changes
from levada.destinations.postgres.claims import Claims, require_create
from levada.destinations.postgres.columns import Layout
from levada.destinations.postgres.connections import DEFER, Connections, patiently, server_of
from levada.destinations.postgres.erasing import delete_rows, places
from levada.destinations.postgres.fixed_table import PostgresVersion, ReadState, Shown
from levada.destinations.postgres.group import PostgresGroup
from levada.destinations.postgres.intact import check_intact, read_storage, require_present
from levada.destinations.postgres.kept_parts import complete, write_ranges
from levada.destinations.postgres.left_out import rows_left_out
from levada.destinations.postgres.naming import Naming
from levada.destinations.postgres.region import keys_in
from levada.destinations.postgres.repair import guard, repair_rows
from levada.destinations.postgres.settings import Settings, TableOrdering
from levada.destinations.postgres.shadow_copy import ShadowCopy
from levada.destinations.postgres.state import State, TableRow, find_relation
from levada.destinations.verification import FixedTable, Repair
from levada.errors import LevadaError
from levada.postgres.connection import PostgresConnection
from levada.postgres.silence import WatchedConnection
from levada.postgres.vacuum import vacuum
from levada.schema import ReplicatedTableSchema, TableTarget
from levada.schema.partitions import Region
from levada.segments.batch import EventBatch, TableEvents
from levada.values import Durability, QualifiedTable, TableId, Watermark, resync_command

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Table(TableState):
    """The state of one table that this process keeps. One transaction writes several tables, so nothing is locked."""

    shadow: ShadowCopy | None = None
    fenced: int | None = None
    """The epoch in which this object has written the table."""
    compared: PostgresVersion | None = None
    """The version that was returned last for a comparison."""
    copy_epoch: int | None = None
    """The epoch in which this object has begun a copy."""

    def forget(self) -> None:
        """Discard the watermark and the shadow copy."""
        self.seen = self.shadow = None


class PostgresDestination(FencedDestination[_Table]):
    """Writes each source table to a table in a PostgreSQL database, with its watermark in the same transaction.

    The tables keep the source's types. Views, privileges, indexes and foreign keys of theirs outlast a resync. A table
    without a usable key is a changelog (`effective_mode`).
    """

    name: ClassVar[str] = "postgres"
    capabilities: ClassVar[Capabilities] = Capabilities(
        upsert=True,
        watermark=True,
        replacement=True,
        keeps_ranges=True,
        verifies=True,
        verifies_ranges=True,
        repairs=True,
        erases=True,
        guards=True,
        finds_rows=True,
        keeps_deleted=True,
        retypes_in_utc=True,
    )

    def __init__(self, server: PostgresConnection, settings: Settings, context: DestinationContext) -> None:
        self._states = TableStates(lambda _: _Table())
        self._server = server
        self._context = context
        self._naming = Naming.of(settings)
        self._state = State(settings.state_schema, Owner(context))
        self._claims = Claims(self._state)
        self._connections = Connections(server)
        self._lock = threading.Lock()
        self._created = False

    settings_model: ClassVar[type[BaseModel] | None] = Settings

    @classmethod
    def from_settings(cls, settings: Settings, context: DestinationContext) -> Self:
        """Create a destination from the manifest's ``spec.destination.postgres``."""
        kind: type[PostgresDestination] = cls
        if settings.ordering is TableOrdering.PIPELINE:
            kind = OrderedPostgresDestination
        return cast("Self", kind(server_of(settings, context.credentials), settings, context))

    @classmethod
    def planned_name(cls, settings: Settings, table: QualifiedTable, name: QualifiedTable) -> TargetName:
        """Return the table's name in the database."""
        return Naming.of(settings).target_name(table, name)

    def startup(self) -> None:
        """Create the tables of the state, so that an unusable database is reported before a copy begins."""
        with self._transaction("opening the destination"):
            pass

    def check(self) -> None:
        """Raise if the role cannot create temporary tables, or the schema of the state."""
        with self._connections.transaction("checking the destination") as connection:
            connection.execute("CREATE TEMPORARY TABLE pg_temp.levada_check () ON COMMIT DROP")
            self._state.create(connection)
            if self._context.only_checks:
                raise psycopg.Rollback

    def shutdown(self) -> None:
        """Close the connections."""
        self._connections.close()

    def target_name(self, table: QualifiedTable, name: QualifiedTable) -> TargetName:
        """Return the table's name in the database."""
        return self._naming.target_name(table, name)

    def check_place(self, target: TableTarget) -> None:
        """Raise NeedsOperator if the database has a table of that name which a copy must not replace.

        Raise it too if the role may not create a table there.
        """
        place = self.place_of(target)
        with self._transaction(f"checking {place}") as connection:
            self._claims.check(connection, target.schema, place)
            require_create(connection, place.schema)

    def has_table(self, target: TableTarget) -> bool:
        """Return True if the database has a table of that name."""
        with self._transaction(f"looking for the table of {target.schema.name}") as connection:
            return find_relation(connection, self.place_of(target)) is not None

    def check_sources(
        self, tables: Mapping[QualifiedTable, QualifiedTable], selects: Callable[[QualifiedTable], bool]
    ) -> None:
        """Raise NeedsOperator ``destination_is_source`` if the database is the source of one of the tables."""
        places = {source: self._naming.place(source, name) for source, name in tables.items()}
        with self._connections.transaction("checking the tables") as connection:
            self._state.create(connection)
            self._claims.check_sources(connection, places, selects)
            if self._context.only_checks:
                raise psycopg.Rollback

    def drop_table_for_copy(self, target: TableTarget, epoch: int | None = None) -> None:
        """Remove the watermark and the shadow copies. The table stays until the next copy replaces its rows.

        So its views and foreign keys stay too. If ``epoch`` is None, no copy follows, and the table is dropped.
        """
        self._end_comparison(target.id)
        patiently(lambda: self._drop_for_copy(target, epoch))
        self._table_of(target).forget()

    def _drop_for_copy(self, target: TableTarget, epoch: int | None) -> None:
        place, schema = self.place_of(target), target.schema
        with self._transaction(f"dropping {place}", schema.id, epoch) as connection:
            row = self._state.find(connection, schema.id, lock=True)
            if row is None or row.place != place:
                self._claims.check(connection, schema, place)
            if row is not None:
                require_epoch(row.epoch, epoch)
                shadow_copy.drop_all(connection, self._state, row)
                if epoch is None:
                    shadow_copy.drop_table(connection, row)
                    self._state.forget(connection, row)
                else:
                    self._state.save(connection, row, replace(row, lsn=None, epoch=epoch))

    def release_table(self, target: TableTarget) -> None:
        """Remove the guard and the watermark. The owner stays, so that its next copy replaces the rows."""
        patiently(lambda: self._release(target))
        self._table_of(target).forget()

    def _release(self, target: TableTarget) -> None:
        with self._transaction(f"releasing {self.place_of(target)}") as connection:
            row = self._state.find(connection, target.schema.id, lock=True)
            if row is not None:
                shadow_copy.drop_all(connection, self._state, row)
                self._state.unguard(connection, row)
                self._state.save(connection, row, replace(row, lsn=None))

    def write_table_rows(self, target: TableTarget, rows: TableRows, mark: Watermark) -> Durability:
        """Copy the rows to a shadow copy. One transaction makes them the table's rows and stores ``mark``."""
        place, schema, mode = self.place_of(target), target.schema, self.effective_mode(target)
        self._table_of(target).copy_epoch = mark.epoch
        self._end_comparison(schema.id)
        with self._transaction(f"beginning the copy of {place}", schema.id, mark.epoch) as connection:
            row = self._claims.take(connection, schema, place, mode, mark.epoch)
            copy = shadow_copy.begin(connection, self._state, row, schema, mode, place, mark.lsn, rows.kept_place)
            self._state.save(connection, row, replace(row, epoch=mark.epoch))
        try:
            self._fill(copy, rows, place)
            patiently(lambda: self._serve(copy, mark, place))
        except BaseException:
            if rows.kept_place != copy.id:
                with suppress(LevadaError):
                    self.drop_replacement(schema.id)
            raise
        self._table_of(target).seen = mark.lsn
        return Durability.DURABLE

    def group_writer(self) -> GroupWriter:
        """Return what creates small tables with their rows in one transaction."""
        return PostgresGroup(self._claims, self)

    def group_committed(self, tables: Collection[TableId], mark: Watermark) -> None:
        """Remember the watermark of tables, of which a copy is committed."""
        for state in map(self._states.of, tables):
            state.forget()
            state.seen, state.copy_epoch = mark.lsn, mark.epoch

    def transaction(self, doing: str) -> AbstractContextManager[WatchedConnection]:
        """Run the block in a transaction, after the tables of the state exist."""
        return self._transaction(doing)

    def _serve(self, copy: ShadowCopy, mark: Watermark, place: QualifiedTable | None = None) -> bool:
        """Make the rows of a complete shadow copy those of the table. Return False if the copy is gone."""
        with self._transaction(f"replacing the rows of {copy.schema.name}") as connection:
            row = self._locked(connection, copy.schema, mark)
            if place is None and shadow_copy.position(connection, self._state, copy) is None:
                return False
            after = shadow_copy.serve(connection, self._state, row, copy, place or row.place)
            self._state.save(connection, row, replace(after, epoch=mark.epoch, lsn=mark.lsn))
        return True

    def write_events(self, events: EventBatch, mark: Watermark) -> Durability:
        """Apply the changes of all tables of the batch in one transaction with their watermarks."""
        if not events.only_asks:
            patiently(lambda: self._write_events(events, mark))
        return Durability.DURABLE

    def _write_events(self, events: EventBatch, mark: Watermark) -> None:
        written: list[_Table] = []
        with self._transaction("applying changes") as connection:
            connection.execute(DEFER)
            # In one order, so that two transactions cannot wait for each other.
            for table in sorted(events.tables):
                self._end_older_writer(connection, table, mark.epoch)
                changes, state = events.changes(table), self._states.of(table)
                row = self._locked(connection, changes.schema, mark)
                state.saw(row.place, row.lsn, resync_command(row.owner.source_name))
                if row.lsn is not None and mark.lsn <= row.lsn:
                    continue
                if changes.truncates or Layout.of(changes.schema) != Layout.of(self._compared_schema(table, changes)):
                    self._end_comparison(table)
                mode = self.effective_mode(changes.target)
                after = apply_table(connection, row, changes, mode, self._context.on_schema_change)
                self._state.save(connection, row, replace(after, epoch=mark.epoch, lsn=mark.lsn))
                written.append(state)
        for state in written:
            state.seen = mark.lsn
        for table in events.tables:
            self._states.of(table).fenced = mark.epoch

    def applied(self, table: TableId) -> Watermark | None:
        """Return the table's watermark. Raise DestinationChanged if another session changed the table."""
        with self._transaction("reading a watermark") as connection:
            if (found := self._state.find_copied(connection, table)) is None:
                return None
            row, lsn = found
            self._states.of(table).saw(row.place, lsn, resync_command(row.owner.source_name))
            check_intact(connection, row)
        return Watermark(self._context.pipeline, row.epoch, lsn)

    def keys_in(self, target: TableTarget, region: Region) -> Iterator[pa.RecordBatch]:
        """Yield the keys of the rows in a region, which the server finds."""
        schema = target.schema
        with self._transaction(f"looking for the rows of a partition of {schema.name}") as connection:
            row, _ = self._state.require_copied(connection, f"the table of {schema.name}", schema)
            yield from keys_in(connection, row.place, row.layout, schema, region)

    def rows_left_out(self, target: TableTarget) -> Iterator[pa.RecordBatch]:
        """Yield the rows whose keys the shadow copy does not have, which the server finds."""
        schema, copy = target.schema, self._table_of(target).shadow
        if copy is None:
            return
        with self._transaction(f"looking for the kept rows of {schema.name}") as connection:
            row, _ = self._state.require_copied(connection, f"the table of {schema.name}", schema)
            yield from rows_left_out(connection, row, copy, schema)

    def fixed(self, target: TableTarget) -> FixedTable | None:
        """Return the table as of a transaction that stays open, also if another session has changed it."""

        def state_of(connection: WatchedConnection) -> Shown | None:
            if (found := self._state.find_copied(connection, target.id)) is None:
                return None
            row, lsn = found
            require_present(connection, row)
            return row.place, row.layout, lsn

        return self._fixed(target, state_of)

    def fixed_replacement(self, target: TableTarget) -> FixedTable | None:
        """Return the shadow copy as of a transaction that stays open."""
        copy = self._table_of(target).shadow

        def state_of(connection: WatchedConnection) -> Shown | None:
            lsn = None if copy is None else shadow_copy.position(connection, self._state, copy, lock=False)
            return None if copy is None or lsn is None else (copy.place, copy.layout, lsn)

        return self._fixed(target, state_of)

    def _fixed(
        self,
        target: TableTarget,
        state_of: ReadState,
    ) -> FixedTable | None:
        self._require_last_rows(target, "PostgreSQL")
        keeps_columns = self._context.on_schema_change is OnSchemaChange.IGNORE
        version = PostgresVersion.open(self._server, target.schema, state_of, keeps_columns=keeps_columns)
        self._table_of(target).compared = version
        return version

    def repair(
        self,
        target: TableTarget,
        fixed: FixedTable,
        repair: Repair,
        rows: Iterable[pa.RecordBatch],
        mark: Watermark,
    ) -> None:
        """Replace the rows that differ. From then on, no other session can write the table."""
        assert isinstance(fixed, PostgresVersion)
        schema, policy = target.schema, self._context.on_schema_change
        # It reads no more, and a change of columns would wait for it.
        self._end_comparison(target.id)
        patiently(lambda: self._guard(schema, repair, mark))
        with self._transaction(f"repairing {schema.name}", schema.id, mark.epoch) as connection:
            connection.execute(DEFER)
            row = self._locked(connection, schema, mark)
            after = replace(row, layout=evolve(connection, row, schema, policy), epoch=mark.epoch)
            repair_rows(connection, row.place, after.layout, schema, fixed, repair, rows)
            storage = read_storage(connection, after)
            if row.storage is not None and row.storage.is_unaccepted:
                storage = storage.unaccepted()
            self._state.save(connection, row, replace(after, storage=storage))

    def _guard(self, schema: ReplicatedTableSchema, repair: Repair, mark: Watermark) -> None:
        """Guard the table. If another session may have changed it, it stays changed until `accept_repair`."""
        with self._transaction(f"guarding the table of {schema.name}") as connection:
            row = self._locked(connection, schema, mark)
            guard(connection, self._state, row, repair)

    def accept_repair(self, target: TableTarget, fixed: FixedTable, mark: Watermark) -> None:
        """Make ``mark`` the table's watermark, because the version ``fixed`` equals the source there."""
        schema = target.schema
        with self._transaction(f"repairing {schema.name}", schema.id, mark.epoch) as connection:
            row = self._locked(connection, schema, mark)
            storage = check_intact(connection, replace(row, storage=None))
            self._state.save(connection, row, replace(row, storage=storage, epoch=mark.epoch, lsn=mark.lsn))
        self._table_of(target).seen = mark.lsn

    def erase(self, target: TableTarget, wanted: Erasure, mark: Watermark) -> Erased:
        """Delete the rows in one transaction, which moves no watermark, and vacuum the table."""
        schema = target.schema
        with self._transaction(f"erasing rows of {schema.name}", schema.id, mark.epoch) as connection:
            connection.execute(DEFER)
            row = self._locked(connection, schema, mark)
            check_intact(connection, row)
            erased = delete_rows(connection, row, schema, wanted)
            self._state.save(connection, row, replace(row, epoch=mark.epoch))
        if not wanted.dry_run:
            # Also after a deletion by an earlier call, or by the stream.
            vacuum(self._server, [row.place])
        return erased.also(places(row.place))

    def _compared_schema(self, table: TableId, changes: TableEvents) -> ReplicatedTableSchema:
        version = self._states.of(table).compared
        return changes.schema if version is None else version.schema

    def _end_comparison(self, table: TableId) -> None:
        """End the comparison that reads the table, before a change that waits for readers."""
        state = self._states.of(table)
        version, state.compared = state.compared, None
        if version is not None:
            version.end()

    # -- the shadow copy of a table

    def copy_replacement(self, target: TableTarget, rows: TableRows, mark: Watermark) -> bool:
        """Copy the rows to a shadow copy. Return False if there is no complete copy of ours."""
        place, schema, mode = self.place_of(target), target.schema, self.effective_mode(target)
        self._table_of(target).copy_epoch = mark.epoch
        with self._transaction(f"beginning the copy of {place}", schema.id, mark.epoch) as connection:
            found = self._state.find_copied(connection, schema.id, lock=True)
            if found is None or (row := found[0]).place != place:
                return False
            require_epoch(row.epoch, mark.epoch)
            copy = shadow_copy.begin(connection, self._state, row, schema, mode, place, mark.lsn, rows.kept_place)
            self._state.save(connection, row, replace(row, epoch=mark.epoch))
        self._fill(copy, rows, place)
        self._table_of(target).shadow = copy
        return True

    def write_replacement_events(self, events: EventBatch, mark: Watermark) -> bool:
        """Apply the batch to the shadow copy. Return False if the batch changes the columns."""
        (table,) = events.tables
        copy, changes = self._states.of(table).shadow, events.changes(table)
        if copy is None or Layout.of(changes.schema) != copy.layout:
            return False
        with self._transaction(f"applying changes to the copy of {changes.schema.name}") as connection:
            self._locked(connection, changes.schema, mark)
            # The database knows it, also after a commit whose answer was lost.
            lsn = shadow_copy.position(connection, self._state, copy)
            if lsn is None:
                return False
            if lsn < mark.lsn:
                write_changes(connection, copy.place, copy.layout, changes, max(changes.after, lsn), copy.mode)
                shadow_copy.advance(connection, self._state, copy, mark.lsn)
        copy.schema = changes.schema
        return True

    def swap_replacement(self, table: TableId, mark: Watermark) -> bool:
        """Make the rows of the shadow copy those of the table, with the watermark, in one transaction."""
        state = self._states.of(table)
        copy = state.shadow
        if copy is None:
            return False
        self._end_comparison(table)
        if not patiently(lambda: self._serve(copy, mark)):
            return False
        state.shadow, state.seen = None, mark.lsn
        return True

    def drop_replacement(self, table: TableId) -> None:
        """Drop the shadow copy. Raise StaleEpoch if a newer driver has written the table or begun a copy of it."""
        self._states.of(table).shadow = None
        self._end_comparison(table)
        with self._transaction("dropping a copy") as connection:
            if (row := self._state.find(connection, table, lock=True)) is not None:
                require_epoch(row.epoch, self._states.of(table).copy_epoch)
                shadow_copy.drop_all(connection, self._state, row)

    # -- parts of the methods above

    def place_of(self, target: TableTarget) -> QualifiedTable:
        """Return the table's name in the database. Raise NeedsOperator ``destination_name_unusable``."""
        return self._naming.place(target.schema.name, target.name)

    def _fill(self, copy: ShadowCopy, rows: TableRows, place: QualifiedTable) -> None:
        copied = write_ranges(self._server, self._state.schema, copy, rows)
        with self._transaction(f"completing the copy of {place}") as connection:
            complete(connection, self._state, copy, copied)

    @contextmanager
    def _transaction(
        self, doing: str, table: TableId | None = None, epoch: int | None = None
    ) -> Iterator[WatchedConnection]:
        """Run the block in a transaction, after the tables of the state exist.

        With ``table`` and ``epoch``, the transaction of an older driver on the table is ended first.
        """
        with self._lock:
            if not self._created and not self._context.only_checks:
                with self._connections.transaction(doing) as connection:
                    self._state.create(connection)
                self._created = True
        with self._connections.transaction(doing) as connection:
            if table is not None and epoch is not None:
                self._end_older_writer(connection, table, epoch)
            yield connection

    def _end_older_writer(self, connection: WatchedConnection, table: TableId, epoch: int) -> None:
        # Once is enough: afterwards the older driver sees the new epoch before it writes.
        if self._states.of(table).fenced != epoch:
            self._state.end_older_writer(connection, table, epoch)

    def _locked(self, connection: WatchedConnection, schema: ReplicatedTableSchema, mark: Watermark) -> TableRow:
        """Lock and return the state of the table. Raise StaleEpoch if a newer driver has written the table."""
        if (row := self._state.find(connection, schema.id, lock=True)) is None:
            raise missing(f"the table of {schema.name}", schema.name)
        require_epoch(row.epoch, mark.epoch)
        return row


class OrderedPostgresDestination(PostgresDestination):
    """The destination with the ordering Pipeline: one transaction has the changes of all tables."""

    capabilities: ClassVar[Capabilities] = replace(PostgresDestination.capabilities, ordering=Ordering.PIPELINE)
