"""`BigQueryDestination`, which writes tables to BigQuery."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from levada import codes
from levada.copy.rows import TableRows
from levada.destinations.bigquery import scripts
from levada.destinations.bigquery.connection import Connection
from levada.destinations.bigquery.evolution import check_columns, evolve
from levada.destinations.bigquery.failures import AlreadyExistsError
from levada.destinations.bigquery.layout import Layout, check_key
from levada.destinations.bigquery.names import TableName, served_name
from levada.destinations.bigquery.ownership import MADE, RecordedOwner, label
from levada.destinations.bigquery.resource import check_keeps_rows, same_place, table_resource
from levada.destinations.bigquery.rest import RestClient, check_length
from levada.destinations.bigquery.served_table import ServedTable, check_made, read_state
from levada.destinations.bigquery.settings import Settings
from levada.destinations.bigquery.staging import StagedColumns
from levada.destinations.bigquery.state import Description, StoredState
from levada.destinations.collisions import TargetName
from levada.destinations.context import DestinationContext
from levada.destinations.fenced import (
    FencedDestination,
    TableState,
    TableStates,
    check_same_table,
    missing,
    require_epoch,
)
from levada.destinations.interface import Capabilities, TableMode
from levada.destinations.ownership import ANOTHERS, Owner
from levada.errors import DestinationChanged, NeedsOperator, Transient
from levada.schema import ReplicatedTableSchema, TableTarget
from levada.segments.batch import EventBatch, TableEvents
from levada.values import Durability, QualifiedTable, TableId, Watermark, resync_command

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Table(TableState):
    """The destination's knowledge of a source table. ``copy_epoch`` is that of this object's last shadow copy."""

    state_name: str = ""
    served: ServedTable | None = None
    shadow: ServedTable | None = None
    copy_epoch: int | None = None

    def forget(self) -> None:
        """Discard the state of the table, which is read again."""
        self.served, self.state_name, self.seen = None, "", None


class BigQueryDestination(FencedDestination[_Table]):
    """Writes each source table to a table of BigQuery, and its watermark in the same transaction.

    A table without a usable key is a changelog (`effective_mode`).
    """

    name: ClassVar[str] = "bigquery"
    capabilities: ClassVar[Capabilities] = Capabilities(upsert=True, watermark=True, replacement=True)
    settings_model = Settings

    def __init__(self, settings: Settings, context: DestinationContext) -> None:
        self._states = TableStates(lambda _: _Table())
        self._settings = settings
        self._context = context
        self._owner = RecordedOwner(Owner(context), self._described_in)
        self._connection = Connection.of(settings, context.credentials)
        self._rest = RestClient(self._connection, settings.project, settings.location)

    @classmethod
    def from_settings(cls, settings: Settings, context: DestinationContext) -> Self:
        """Create a destination from the manifest's ``spec.destination.bigquery``."""
        Connection.require_client()
        return cls(settings, context)

    @classmethod
    def planned_name(cls, settings: Settings, table: QualifiedTable, name: QualifiedTable) -> TargetName:
        """Return the table's name in BigQuery."""
        found = str(served_name(settings, table, name))
        return TargetName(found, found)

    def target_name(self, table: QualifiedTable, name: QualifiedTable) -> TargetName:
        """Return the table's name in BigQuery."""
        return self.planned_name(self._settings, table, name)

    def startup(self) -> None:
        """Create the metadata dataset, so that missing permissions are reported before a copy begins."""
        if not self._context.only_checks:
            self._rest.ensure_dataset(self._settings.metadata_dataset)
        self._check_defaults(self._settings.metadata_dataset)

    def check(self) -> None:
        """Raise if a query cannot be run in the project."""
        self._rest.query("check the project", "SELECT 1", has_rows=False)

    def shutdown(self) -> None:
        """Close all connections."""
        self._rest.close()

    # -- copies

    def check_place(self, target: TableTarget) -> None:
        """Raise NeedsOperator if BigQuery has a table of that name which a copy must not replace.

        It may replace this source table's own table, and that of a dropped source table of the same name. Raise it too
        if BigQuery cannot have the columns.
        """
        place = self._place(target)
        self._check_free(place, target.schema)
        self._describe(target, place)

    def drop_table_for_copy(self, target: TableTarget, epoch: int | None = None) -> None:
        """Drop the table. A missing table is no error.

        Raise NeedsOperator, without removing data, if the configured name belongs to another table. Raise StaleEpoch if
        a driver newer than ``epoch`` has written the table. The state stays, so that an older driver cannot write the
        next table, unless ``epoch`` is None.
        """
        table, place = self._table_of(target), self._place(target)
        with table.lock:
            self._check_free(place, target.schema)
            served = self._served(table, target.id, fresh=True)
            state = None if served is None else served.read_state()
            if state is not None:
                require_epoch(state.epoch, epoch)
            self._drop_shadow(table, target.id, epoch)
            if served is not None and state is not None:
                cleared = state.after(state.epoch if epoch is None else epoch, None, state.description)
                state = served.change(state, cleared, ())
                if served.name != place:
                    self._drop_former(served, state, target.id)
                served.drop_served(state, place)
            else:
                self._rest.drop_table(place)
            if served is not None and epoch is None:
                self._rest.drop_table(served.state_table)
            table.served = table.seen = None

    def write_table_rows(self, target: TableTarget, rows: TableRows, mark: Watermark) -> Durability:
        """Write the rows to a staging table, and move them into the table in one transaction with ``mark``.

        The transaction removes all earlier rows.
        """
        table, place, schema = self._table_of(target), self._place(target), target.schema
        with table.lock:
            described = self._describe(target, place)
            resource = self._check_free(place, schema)
            self._rest.ensure_dataset(self._settings.metadata_dataset)
            served = self._served(table, target.id) or self._new(table, target.id, place)
            state = served.claim(described, mark.epoch)
            wanted = table_resource(self._settings, schema, described)
            if resource is None or not self._fits(served, state, described, resource, wanted):
                described = replace(described, made=secrets.token_hex(8))
                state = served.change(state, state.after(mark.epoch, None, described), ())
                self._rest.ensure_dataset(place.dataset)
                self._check_defaults(place.dataset, partitioned="timePartitioning" in wanted)
                served.drop_served(state, place)
                served.name = place
                self._create(served, wanted, schema, described.made)
            else:
                described = replace(described, made=state.description.made)
            state = served.copy(state, described, schema, rows, mark)
            table.served, table.seen = served, mark.lsn
        return Durability.DURABLE

    # -- changes

    def applied(self, table: TableId) -> Watermark | None:
        """Return the watermark of the last transaction.

        Raise DestinationChanged if the table belongs to another owner, or if its state was set back.
        """
        known = self._states.of(table)
        with known.lock:
            served = self._served(known, table, fresh=True)
            state = None if served is None else served.read_state()
            if served is None or state is None or state.lsn is None:
                return None
            resource = self._rest.table(served.name)
            if resource is None:
                return None
            self._owner.require(served.name, resource, table)
            check_made(served, state, resource)
            known.saw(served.name, state.lsn, resync_command(state.description.source))
            return state.mark(self._context.pipeline)

    def maintain(self, table: TableId) -> None:
        """Raise DestinationChanged if the table is missing, or belongs to another owner now."""
        known = self._states.of(table)
        with known.lock:
            state = None if known.served is None else known.served.read_state()
            if known.served is not None and state is not None:
                check_made(known.served, state, self._resource(known.served, table))

    def _apply(self, table: _Table, events: TableEvents, mark: Watermark) -> None:
        schema, mode = events.schema, self.effective_mode(events.target)
        served = self._served(table, schema.id)
        state = None if served is None else served.read_state()
        if served is None or state is None or state.lsn is None:
            raise missing(self._place(events.target) if served is None else served.name, schema.name)
        hint = resync_command(state.description.source)
        if not table.begins(served.name, hint, (state.epoch, state.lsn), mark):
            return
        resource = self._resource(served, schema.id)
        check_made(served, state, resource)
        made = state.description
        same_key = sorted(made.key) == sorted(schema.key)
        check_same_table(served.name, schema, mode, made_as=made.mode, same_key=same_key)
        if mode is TableMode.UPSERT:
            check_key(schema, state.description.columns)
        after = max(events.after, state.lsn)
        policy = self._context.on_schema_change
        state = evolve(served, state, resource, schema, self._settings.jsonb, policy, mark.epoch)
        try:
            served.apply(state, events, after, mark)
        except NeedsOperator as error:
            if error.code == codes.DESTINATION_ERROR:
                # The reason may be a column that another writer dropped or renamed.
                check_columns(served, state.description.columns, served.columns(), schema)
            raise
        table.seen = mark.lsn

    # -- the shadow copy of a table

    def copy_replacement(self, target: TableTarget, rows: TableRows, mark: Watermark) -> bool:
        """Write the rows to a table in the metadata dataset.

        Return False if there is no readable table of ours, or if it has other columns, partitions or clusters.
        """
        table, place, schema = self._table_of(target), self._place(target), target.schema
        with table.lock:
            table.copy_epoch = mark.epoch
            resource = self._check_free(place, schema)
            served = self._served(table, target.id, fresh=True)
            state = None if served is None else served.read_state()
            if served is None or state is None or state.lsn is None or resource is None:
                return False
            require_epoch(state.epoch, mark.epoch)
            described = self._describe(target, place)
            wanted = table_resource(self._settings, schema, described)
            if not self._fits(served, state, described, resource, wanted):
                return False
            self._drop_shadow(table, target.id, mark.epoch)
            shadow = self._shadow(table, target.id)
        first = shadow.claim(described, mark.epoch)
        self._create(shadow, wanted, schema)
        shadow.copy(first, described, schema, rows, mark)
        with table.lock:
            table.shadow = shadow
        return True

    def write_replacement_events(self, events: EventBatch, mark: Watermark) -> bool:
        """Apply the batch to the shadow copy. Return False if the batch changes the columns."""
        (table_id,) = events.tables
        changes = events.changes(table_id)
        table = self._states.of(table_id)
        with table.lock:
            shadow = table.shadow
            state = None if shadow is None else shadow.read_state()
            if shadow is None or state is None or state.lsn is None:
                return False
            if mark.lsn <= state.lsn:
                return True
            described = self._describe(changes.target, self._place(changes.target))
            held = state.description
            if (described.columns, described.key, described.mode) != (held.columns, held.key, held.mode):
                return False
            shadow.apply(state, changes, max(changes.after, state.lsn), mark)
            return True

    def swap_replacement(self, table: TableId, mark: Watermark) -> bool:
        """Replace all rows of the table by those of the shadow copy, in one transaction with ``mark``."""
        known = self._states.of(table)
        with known.lock:
            served, shadow = self._served(known, table), known.shadow
            state = None if served is None else served.read_state()
            copied = None if shadow is None else shadow.read_state()
            if served is None or shadow is None or state is None or copied is None or state.lsn is None:
                return False
            require_epoch(state.epoch, mark.epoch)
            resource = self._rest.table(served.name)
            made = replace(copied.description, made=state.description.made)
            if resource is None or (state.description.columns, state.description.columns_after) != (made.columns, None):
                return False
            self._owner.require(served.name, resource, table)
            check_made(served, state, resource)
            # A shadow copy of another process may have taken the place of this one, also after this comparison.
            now = read_state(self._rest, shadow.state_table)
            if now is None or now.version != copied.version:
                return False
            parts = [
                scripts.check_version(shadow.state_table, copied.version),
                scripts.truncate(served.name)
                + "\n"
                + scripts.insert_shadow(served.name, shadow.name, made.columns, made.mode),
            ]
            served.change(state, state.after(mark.epoch, mark.lsn, made), parts)
            known.seen = mark.lsn
            self._drop_shadow(known, table, mark.epoch)
            return True

    def drop_replacement(self, table: TableId) -> None:
        """Drop the shadow copy and its state.

        Raise StaleEpoch if a newer driver has written the table or begun a copy.
        """
        known = self._states.of(table)
        with known.lock:
            served = self._served(known, table, fresh=True)
            state = None if served is None else served.read_state()
            if state is not None:
                require_epoch(state.epoch, known.copy_epoch)
            self._drop_shadow(known, table, known.copy_epoch)

    def _shadow(self, table: _Table, table_id: TableId) -> ServedTable:
        state = f"{table.state_name}_shadow"
        name = "shadow_" + table.state_name.removeprefix("state_")
        return ServedTable(self._rest, self._connection, self._metadata(name), self._metadata(state))

    def _drop_shadow(self, table: _Table, table_id: TableId, epoch: int | None) -> None:
        """Drop the shadow copy. Raise StaleEpoch if it is that of a driver newer than ``epoch``."""
        table.shadow = None
        if not table.state_name:
            self._served(table, table_id)
        shadow = self._shadow(table, table_id)
        # Another writer may have damaged the state of a copy that no engine reads.
        with suppress(DestinationChanged):
            state = shadow.read_state()
            if state is not None:
                require_epoch(state.epoch, epoch)
        shadow.drop()

    # -- finding tables

    def _served(self, table: _Table, table_id: TableId, *, fresh: bool = False) -> ServedTable | None:
        """Return the table that the state describes, or None if there is no state. ``fresh`` reads the state again."""
        if table.served is not None:
            if fresh:
                table.served.state = None
            return table.served
        names = [table.state_name] if table.state_name else [self._owner.state_name(table_id)]
        state = read_state(self._rest, self._metadata(names[0]))
        if state is None and not table.state_name:
            for name in self._owner.former_state_names(table_id):
                state = read_state(self._rest, self._metadata(name))
                if state is not None:
                    names = [name]
                    break
        table.state_name = names[0]
        if state is None:
            return None
        held = TableName(self._settings.project, state.description.dataset, state.description.name)
        table.served = ServedTable(self._rest, self._connection, held, self._metadata(table.state_name), state)
        return table.served

    def _new(self, table: _Table, table_id: TableId, place: TableName) -> ServedTable:
        return ServedTable(self._rest, self._connection, place, self._metadata(table.state_name))

    def _metadata(self, name: str) -> TableName:
        return TableName(self._settings.project, self._settings.metadata_dataset, name)

    def _place(self, target: TableTarget) -> TableName:
        return served_name(self._settings, target.schema.name, target.name)

    def _describe(self, target: TableTarget, place: TableName) -> Description:
        """Return the description of a new table. Raise NeedsOperator for columns that BigQuery cannot have."""
        schema, mode = target.schema, self.effective_mode(target)
        columns = Layout.of(schema, self._settings.jsonb)
        if mode is TableMode.UPSERT:
            check_key(schema, columns)
            staged = StagedColumns(columns, schema.key, mode, is_copy=False)
            check_length(f"write {place}", scripts.longest(place, self._metadata(f"changes_{'0' * 32}"), staged))
        return Description(
            pipeline=self._context.full_name,
            source_id=self._owner.owner.source_id,
            table=schema.id,
            source=schema.name,
            dataset=place.dataset,
            name=place.name,
            mode=mode,
            key=schema.key,
            columns=columns,
        )

    def _described_in(self, state_name: str) -> Description | None:
        state = read_state(self._rest, self._metadata(state_name))
        return None if state is None else state.description

    # -- checks

    def _check_free(self, place: TableName, schema: ReplicatedTableSchema) -> Mapping[str, Any] | None:
        """Return the resource of the table of that name, or None. Raise NeedsOperator if a copy must not replace it."""
        resource = self._rest.table(place)
        if resource is not None:
            self._owner.require_replaceable(place, resource, schema)
        return resource

    def _resource(self, served: ServedTable, table: TableId) -> Mapping[str, Any]:
        resource = self._rest.table(served.name)
        if resource is None:
            raise missing(served.name, None)
        self._owner.require(served.name, resource, table)
        return resource

    def _fits(
        self,
        served: ServedTable,
        state: StoredState,
        described: Description,
        resource: Mapping[str, Any],
        wanted: Mapping[str, Any],
    ) -> bool:
        """Return True if the rows of a copy can take the place of the table's rows, without another change."""
        held = replace(state.description, pipeline=described.pipeline, source=described.source, made=described.made)
        ours = served.state_table.name == label(resource) and label(resource, MADE) == state.description.made
        return ours and held == described and same_place(resource, wanted, served.columns())

    def _check_defaults(self, dataset: str, *, partitioned: bool = False) -> None:
        resource = self._rest.dataset(dataset)
        if resource is not None:
            check_keeps_rows(dataset, resource, partitioned=partitioned)

    def _create(
        self, served: ServedTable, resource: Mapping[str, Any], schema: ReplicatedTableSchema, made: str = ""
    ) -> None:
        try:
            served.create(resource, made)
        except AlreadyExistsError:
            # Another process created it first, or the answer to this one's request was lost.
            found = self._check_free(served.name, schema)
            if found is not None and label(found, MADE) != made:
                raise Transient("commit_conflict", f"another process created {served.name}") from None

    def _drop_former(self, served: ServedTable, state: StoredState, table: TableId) -> None:
        """Drop the table under its former name, unless it belongs to another owner now."""
        resource = self._rest.table(served.name)
        if resource is None:
            return
        try:
            self._owner.require(served.name, resource, table)
        except DestinationChanged as error:
            if error.code not in ANOTHERS:
                raise
            _log.warning("%s is not dropped: %s", served.name, error.message)
            return
        served.drop_served(state, served.name)
