"""The first copies of several small tables: claimed in one snapshot of the catalog, and committed in the next one."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import psycopg

from levada.destinations.data_files.partition_writer import PartitionWriter
from levada.destinations.ducklake.columns import LakeColumns, initial_columns
from levada.destinations.ducklake.copy_folder import remove_folder
from levada.destinations.ducklake.snapshot import NewFiles, NextSnapshot
from levada.destinations.ducklake.state import TableRow, key_text
from levada.destinations.ducklake.statistics import DataFile, describe_files
from levada.destinations.ducklake.tables import FullName, LakeTable, find_all_named, find_schema, find_tables
from levada.destinations.ducklake.writes import Catalog, conflict, is_uncommitted, retried
from levada.destinations.fenced import require_epoch
from levada.destinations.groups import NewTable
from levada.destinations.interface import TableMode
from levada.errors import LevadaError, Permanent
from levada.postgres.silence import WatchedConnection
from levada.schema import TableTarget
from levada.values import TableId, Watermark

_log = logging.getLogger(__name__)


class GroupTables(Protocol):
    """The rules of the destination for its tables."""

    def place_of(self, target: TableTarget) -> FullName:
        """Return the table's place. Raise NeedsOperator for a name that the catalog cannot have."""
        ...

    def effective_mode(self, target: TableTarget) -> TableMode:
        """Return the mode of the table."""
        ...

    def group_committed(self, tables: Collection[TableId], mark: Watermark) -> None:
        """Forget what was known of tables, of which a copy is committed."""
        ...


@dataclass(frozen=True, slots=True)
class _Claimed:
    """A table that was created for a copy, and the folder of the copy in its state."""

    new: NewTable
    row: TableRow
    table: LakeTable
    columns: LakeColumns


@dataclass(frozen=True, slots=True)
class LakeGroup:
    """The `levada.destinations.groups.GroupWriter` of a catalog."""

    catalog: Catalog
    tables: GroupTables

    def free(self, targets: Sequence[TableTarget]) -> Collection[TableId]:
        """Return the tables that have no state, and whose names no table or view has."""
        with self.catalog.database.transaction("checking the places of tables") as connection:
            return self._free(connection, targets).keys()

    def write(self, tables: Sequence[NewTable], mark: Watermark) -> Collection[TableId]:
        """Claim the tables, write their files, and commit them."""
        claimed = retried(lambda: self._claim(tables, mark))
        written: dict[TableId, Sequence[DataFile]] = {}
        for its in claimed:
            try:
                written[its.new.id] = self._write_files(its, mark)
            except LevadaError as error:
                if isinstance(error, Permanent):
                    raise
                _log.info("%s is copied by itself: %s", its.table.name, error.message)
        ready = [its for its in claimed if its.new.id in written]
        done: Collection[TableId] = ()
        try:
            done = retried(lambda: self._commit(ready, written, mark))
        except LevadaError as error:
            # The commit may have succeeded all the same. So keep the files.
            if not is_uncommitted(error):
                raise
            self._remove([its for its in claimed if its.new.id not in done])
            raise
        self._remove([its for its in claimed if its.new.id not in done])
        self.tables.group_committed(done, mark)
        return done

    def _free(self, connection: WatchedConnection, targets: Sequence[TableTarget]) -> Mapping[TableId, FullName]:
        places: dict[TableId, FullName] = {}
        taken: set[tuple[str, str]] = set()
        for target in targets:
            try:
                place = self.tables.place_of(target)
            except LevadaError:
                continue
            folded = (place.schema.lower(), place.name.lower())
            if folded not in taken:
                taken.add(folded)
                places[target.id] = place
        state = self.catalog.state
        known = state.known(connection, list(places))
        names = find_all_named(connection, list(places.values())) | state.taken(connection, list(places.values()))
        return {its: place for its, place in places.items() if its not in known and place not in names}

    def _claim(self, tables: Sequence[NewTable], mark: Watermark) -> list[_Claimed]:
        claimed: list[_Claimed] = []
        with self.catalog.database.transaction("creating tables") as connection:
            # First, so that no other pipeline claims a name meanwhile.
            snapshot = NextSnapshot.begin(connection, self.catalog.author)
            free = self._free(connection, [new.target for new in tables])
            if not free:
                raise psycopg.Rollback
            claimed = self._created(connection, snapshot, [new for new in tables if new.id in free], free, mark)
            if not claimed:
                raise psycopg.Rollback
            inserted = self.catalog.state.insert_all(connection, [its.row for its in claimed])
            if len(inserted) != len(claimed):
                raise conflict("another process has claimed tables of a group")
            snapshot.finish()
        return claimed

    def _created(
        self,
        connection: WatchedConnection,
        snapshot: NextSnapshot,
        tables: Sequence[NewTable],
        places: Mapping[TableId, FullName],
        mark: Watermark,
    ) -> list[_Claimed]:
        schemas = {
            name: find_schema(connection, name) or snapshot.add_schema(name)
            for name in dict.fromkeys(places[new.id].schema for new in tables)
        }
        columns: dict[TableId, LakeColumns] = {}
        for new in tables:
            try:
                columns[new.id] = initial_columns(new.target.schema, self.tables.effective_mode(new.target))
            except LevadaError as error:
                _log.info("%s is copied by itself: %s", places[new.id], error.message)
        kept = [new for new in tables if new.id in columns]
        made = snapshot.add_tables(
            [(schemas[places[new.id].schema], places[new.id].name, columns[new.id]) for new in kept]
        )
        found = find_tables(connection, self.catalog.lake.uri, made)
        claimed = []
        for new, number in zip(kept, made, strict=True):
            table, schema, mode = found[number], new.target.schema, self.tables.effective_mode(new.target)
            row = TableRow(
                self.catalog.state.owner.of(schema),
                places[new.id],
                table.id,
                table.uuid,
                mode,
                key_text(schema),
                columns[new.id].state(),
                mark.epoch,
                None,
                copy_folder=f"copy-{uuid.uuid4()}/",
            )
            claimed.append(_Claimed(new, row, table, columns[new.id]))
        return claimed

    def _write_files(self, its: _Claimed, mark: Watermark) -> Sequence[DataFile]:
        storage = self.catalog.lake.storage(f"{its.table.folder}{its.row.copy_folder}")
        writer = PartitionWriter.of_copy(storage, its.columns.files(), its.new.target.schema, its.row.mode, mark.lsn)
        files = [file for written in its.new.rows.map_partitions(writer) for file in written]
        return describe_files(storage, files, its.columns.own)

    def _commit(
        self, claimed: Sequence[_Claimed], files: Mapping[TableId, Sequence[DataFile]], mark: Watermark
    ) -> Collection[TableId]:
        ready: list[_Claimed] = []
        with self.catalog.database.transaction("committing to tables") as connection:
            locked = self.catalog.state.lock_all(connection, [its.new.id for its in claimed])
            snapshot = NextSnapshot.begin(connection, self.catalog.author)
            intact = snapshot.untouched([its.table.id for its in claimed])
            for its in claimed:
                row = locked.get(its.new.id)
                if row is not None:
                    require_epoch(row.epoch, mark.epoch)
                if row == its.row and its.table.id in intact:
                    ready.append(its)
            if not ready:
                raise psycopg.Rollback
            counts = snapshot.add_new_files(
                [
                    NewFiles(
                        its.table.id,
                        [(f, self._relative(its, f.path)) for f in files[its.new.id]],
                        its.columns.own,
                    )
                    for its in ready
                ]
            )
            snapshot.finish()
            after = [
                (its.row, replace(its.row, copy_folder=None).committed(snapshot.id, count, mark))
                for its, count in zip(ready, counts, strict=True)
            ]
            self.catalog.state.save_all(connection, after)
        return [its.new.id for its in ready]

    def _relative(self, its: _Claimed, path: str) -> str:
        return self.catalog.lake.location(path).removeprefix(its.table.folder)

    def _remove(self, claimed: Sequence[_Claimed]) -> None:
        for its in claimed:
            remove_folder(self.catalog.lake.storage(f"{its.table.folder}{its.row.copy_folder}"))
