"""One table in BigQuery with its state: read, copied to, changed and dropped. Not thread-safe."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from levada import codes
from levada.copy.rows import TableRows
from levada.destinations.bigquery import scripts
from levada.destinations.bigquery.changes import Piece, UpsertRows, changelog_rows
from levada.destinations.bigquery.connection import Connection
from levada.destinations.bigquery.failures import UNAVAILABLE, NotFoundError
from levada.destinations.bigquery.names import TableName
from levada.destinations.bigquery.ownership import LABEL, MADE, label
from levada.destinations.bigquery.rest import RestClient
from levada.destinations.bigquery.staging import PartitionWriter, StagedColumns, staging_table
from levada.destinations.bigquery.state import (
    DONE,
    FENCED,
    Description,
    StoredState,
    create_sql,
    fenced_script,
    guarded_script,
    read_sql,
)
from levada.destinations.bigquery.types import constant
from levada.destinations.bigquery.write_api import StreamWriter, commit, write_client
from levada.destinations.fenced import copied_constants, missing, require_epoch
from levada.destinations.fold import row_missing
from levada.destinations.interface import TableMode
from levada.errors import DestinationChanged, NeedsOperator, Transient
from levada.schema import ReplicatedTableSchema
from levada.segments.batch import TableEvents
from levada.values import Lsn, Watermark, resync_command


@dataclass(frozen=True, slots=True)
class _Staged:
    """A staging table with its number of rows."""

    table: TableName
    rows: int


@dataclass(slots=True)
class ServedTable:
    """A table, or a shadow copy of one. ``state_table`` has its state.

    ``state`` is the state after the last transaction of this object, or None if that is not known.
    """

    rest: RestClient
    connection: Connection
    name: TableName
    state_table: TableName
    state: StoredState | None = None

    # -- the state

    def read_state(self) -> StoredState | None:
        """Return the state, or None if there is none."""
        if self.state is None:
            self.state = read_state(self.rest, self.state_table)
        return self.state

    def claim(self, described: Description, epoch: int) -> StoredState:
        """Return the state, which is created if there is none. Raise StaleEpoch if a newer driver has written it."""
        state = self.read_state()
        if state is None:
            # A state that is dropped and created again never has a version that a former driver may still know.
            first = StoredState(secrets.randbits(61), epoch, None, described)
            self.rest.query(f"create {self.state_table}", create_sql(self.state_table, first), has_rows=False)
            state = self.read_state()
            if state is None:
                raise Transient("destination_unavailable", f"{self.state_table} has no row", hint=UNAVAILABLE)
        require_epoch(state.epoch, epoch)
        return (
            state if state.epoch == epoch else self.change(state, state.after(epoch, state.lsn, state.description), ())
        )

    def change(self, before: StoredState, after: StoredState, parts: Sequence[str]) -> StoredState:
        """Run the parts of a transaction, and change the state with it. Return the new state.

        Raise StaleEpoch if a newer driver has changed the state, and Transient ``commit_conflict`` if any other process
        has. Nothing was changed then.
        """
        self.state = None
        try:
            rows = self.rest.query(f"write {self.name}", fenced_script(self.state_table, before, after, parts))
        except NotFoundError as error:
            if self.rest.table(self.name) is None:
                raise missing(self.name, None) from None
            raise Transient(
                "destination_unavailable", f"write {self.name}: a table is missing", hint=UNAVAILABLE
            ) from error
        outcome = str(rows[0][0]) if rows else ""
        if outcome == DONE:
            self.state = after
            return after
        if outcome == scripts.UNKNOWN_VALUE:
            raise row_missing(after.description.source)
        if outcome == FENCED:
            raise self._fenced(after.epoch)
        raise Transient("destination_unavailable", f"write {self.name}: {outcome or 'no outcome'}", hint=UNAVAILABLE)

    def _fenced(self, epoch: int) -> Transient:
        """Return the error for a state that another process has changed. Raise StaleEpoch if that is a newer driver."""
        self.state = None
        now = self.read_state()
        if now is not None:
            require_epoch(now.epoch, epoch)
        return Transient("commit_conflict", f"another process wrote {self.name}")

    def _guarded(self, what: str, state: StoredState, statement: str) -> None:
        """Run a DDL statement if the state is still ``state``. Raise as `change` does if it is not."""
        rows = self.rest.query(what, guarded_script(self.state_table, state, statement), has_rows=False)
        if not rows or rows[0][0] != DONE:
            raise self._fenced(state.epoch)

    # -- the table

    def create(self, resource: Mapping[str, Any], made: str = "") -> None:
        """Create the table. ``resource`` has its columns, clusters and partitions. ``made`` marks its creation."""
        labels = {LABEL: self.state_table.name, **({MADE: made} if made else {})}
        self.rest.create_table(self.name, {**resource, "labels": labels})

    def drop_served(self, state: StoredState, name: TableName) -> None:
        """Drop the table ``name`` if the state is still ``state``. A missing one is no error.

        Raise StaleEpoch if a newer driver has written the state, and Transient if another process has.
        """
        if self.rest.table(name) is not None:
            try:
                self._guarded(f"drop {name}", state, f"DROP TABLE IF EXISTS {name.sql}")
            except NotFoundError as error:
                raise Transient("destination_unavailable", f"drop {name}: {error}", hint=UNAVAILABLE) from error

    def columns(self) -> dict[str, str]:
        """Return the types of the table's columns by name in lower case."""
        try:
            return self.rest.columns(self.name)
        except NotFoundError:
            raise missing(self.name, None) from None

    def alter(self, state: StoredState, change: str) -> None:
        """Run one ALTER TABLE if the state is still ``state``.

        Raise NeedsOperator ``schema_change_unsupported`` if BigQuery refuses it.
        """
        try:
            self._guarded(f"alter {self.name}", state, f"ALTER TABLE {self.name.sql} {change}")
        except NotFoundError:
            raise missing(self.name, None) from None
        except NeedsOperator as error:
            if error.code != codes.DESTINATION_ERROR:
                raise
            raise NeedsOperator(
                "schema_change_unsupported", error.message, hint="levada resync MANIFEST TABLE"
            ) from error

    def drop(self) -> None:
        """Drop the table and its state."""
        self.state = None
        self.rest.drop_table(self.name)
        self.rest.drop_table(self.state_table)

    # -- rows

    def copy(
        self,
        state: StoredState,
        described: Description,
        schema: ReplicatedTableSchema,
        rows: TableRows,
        mark: Watermark,
    ) -> StoredState:
        """Replace all rows by those of a copy, and store ``mark`` in the same transaction."""
        columns = StagedColumns(described.columns, described.key, described.mode, is_copy=True)
        copied = copied_constants(described.mode, mark.lsn)
        with staging_table(self.rest, self.state_table, columns) as staging:
            streams = rows.map_partitions(PartitionWriter(self.connection, staging, columns, schema, copied))
            commit(self.connection, staging, streams)
            parts = [
                scripts.check_rows(staging, sum(s.rows for s in streams)),
                scripts.truncate(self.name) + "\n" + scripts.insert_staged(self.name, staging, columns),
            ]
            return self.change(state, state.after(mark.epoch, mark.lsn, described), parts)

    def apply(self, state: StoredState, events: TableEvents, after: Lsn, mark: Watermark) -> StoredState:
        """Apply the changes from commit LSN ``after`` on, and store ``mark`` in the same transaction."""
        described = replace(state.description, filled=())
        columns = StagedColumns(described.columns, described.key, described.mode, is_copy=False)
        following = state.after(mark.epoch, mark.lsn, described)
        with ExitStack() as stack:
            if described.mode is TableMode.CHANGELOG:
                staged = self._stage(stack, columns, changelog_rows(events, columns, after))
                parts = [] if staged is None else [scripts.insert_staged(self.name, staged.table, columns)]
            else:
                truncates = tuple(t for t in events.truncates if t.commit_lsn >= after)
                folded = UpsertRows(events, columns, after, truncates)
                staged = self._stage(stack, columns, folded)
                parts = [scripts.truncate(self.name)] if truncates else self._fill(state, events.schema)
                if staged is not None:
                    parts += _merges(self.name, staged.table, columns, folded.pieces)
            checks = [] if staged is None else [scripts.check_rows(staged.table, staged.rows)]
            return self.change(state, following, [*checks, *parts])

    def _stage(self, stack: ExitStack, columns: StagedColumns, rows: Iterable[pa.Table]) -> _Staged | None:
        """Write rows to a new staging table, which ``stack`` drops. Return None if there is no row."""
        staging, writer = None, None
        for part in rows:
            if writer is None:
                staging = stack.enter_context(staging_table(self.rest, self.state_table, columns))
                client = stack.enter_context(write_client(self.connection))
                writer = stack.enter_context(StreamWriter(client, staging, columns.arrow))
            writer.write(part)
        if writer is None or staging is None:
            return None
        stream = writer.finish()
        commit(self.connection, staging, [stream])
        return _Staged(staging, stream.rows)

    def _fill(self, state: StoredState, schema: ReplicatedTableSchema) -> list[str]:
        """Return the statement that writes the constants of added columns to existing rows, if there are any."""
        constants = {}
        for attnum in state.description.filled:
            source, column = schema.by_attnum.get(attnum), state.description.columns.get(attnum)
            if source is not None and column is not None:
                value = constant(source, column.type, schema.name)
                if value is not None:
                    constants[column.name] = value
        return [scripts.fill(self.name, constants)] if constants else []


def _merges(table: TableName, staging: TableName, columns: StagedColumns, pieces: Sequence[Piece]) -> list[str]:
    parts = []
    for piece in pieces:
        parts += [scripts.check_known(table, staging, columns, piece)] if piece.unknown else []
        parts.append(scripts.merge(table, staging, columns, piece))
    return parts


def read_state(rest: RestClient, table: TableName) -> StoredState | None:
    """Return the row of a state, or None if there is none. Raise DestinationChanged if it is not as Levada wrote it."""
    try:
        rows = rest.query(f"read {table}", read_sql(table), has_rows=False)
    except NotFoundError:
        return None
    try:
        (row,) = rows
        return StoredState.parse(row)
    except ValueError:
        raise _damaged(table) from None


def _damaged(table: TableName) -> DestinationChanged:
    return DestinationChanged(
        "table_damaged",
        f"the state in {table} was changed by another writer",
        hint=f"drop {table} and its table in BigQuery, then: levada resync MANIFEST TABLE",
    )


def check_made(served: ServedTable, state: StoredState, resource: Mapping[str, Any]) -> None:
    """Raise DestinationChanged if the table is not the one that the last copy created.

    A driver that was paused between a comparison and its DDL statement may have replaced it with an empty one.
    """
    if label(resource, MADE) != state.description.made:
        raise DestinationChanged(
            "destination_table_missing",
            f"{served.name} was replaced by another process after its copy, and lacks rows",
            hint=f"copy the table again: {resync_command(state.description.source)}",
        )
