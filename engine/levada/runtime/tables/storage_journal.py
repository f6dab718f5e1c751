"""The storage that each table's rows were copied from, and evidence that rows changed without being streamed.

Two sources of evidence are compared with the storage that a table was copied from: messages of the source's event
trigger, in the order of the stream, and snapshots of the catalog. A snapshot is evaluated after everything that it
shows has been streamed, so that the messages come first. The rules are in `levada.schema.rewrites`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from levada import codes
from levada.errors import LevadaError, NeedsOperator
from levada.postgres.storage import StorageSnapshot
from levada.runtime.tables.baseline import Baseline
from levada.runtime.tables.catalog_reports import (
    LeavesStreamed,
    PartitionsAltered,
    PartitionsCreated,
    TableAltered,
    TablesDropped,
    TablesUnpublished,
)
from levada.runtime.tables.emptied_partitions import EmptiedPartitions
from levada.runtime.tables.kept_regions import keep_former_storage, storage_subject
from levada.runtime.tables.partition_moves import PartitionMoves
from levada.runtime.tables.record import TableRecord
from levada.runtime.tables.rules import needs_resync
from levada.runtime.tables.silent_columns import Columns, SilentColumns
from levada.runtime.tables.streamed_leaves import StreamedLeaves
from levada.runtime.tables.streamed_truncates import StreamedTruncates
from levada.schema.flaws import LeafFlaw, flaw_error
from levada.schema.retypes import Cast
from levada.schema.rewrites import RowsChanged, Witness, find_change, find_missing_key
from levada.schema.storage import PrimaryKey, TableStorage
from levada.schema.table import NEWEST_VERSION, IdentityKind
from levada.schema.types import MOMENTS
from levada.stores.interface import PipelineStore
from levada.stores.phases import DataSync, Errored, Init
from levada.values import Lsn, QualifiedTable, TableId, TableMode, resync_command

if TYPE_CHECKING:
    from levada.segments.manifest import Manifest

_log = logging.getLogger(__name__)


_Announced: TypeAlias = TableAltered | PartitionsCreated | PartitionsAltered


class StorageJournal:
    """Keeps the baselines in the store and compares the evidence with them. For the supervisor's thread only.

    ``park`` parks a table until it is resynced. Without ``moves`` a partition that comes or goes with rows parks it.
    With ``retypes_in_utc`` the destination does, see `Capabilities`.
    """

    def __init__(
        self,
        store: PipelineStore,
        park: Callable[[TableRecord, LevadaError], None],
        moves: PartitionMoves | None = None,
        *,
        retypes_in_utc: bool = False,
    ) -> None:
        self._store = store
        self._retypes_in_utc = retypes_in_utc
        self._park = park
        self._moves = moves
        self._held: dict[TableId, list[_Announced | TablesUnpublished | TablesDropped]] = {}
        self._truncates = StreamedTruncates()
        self._emptied = EmptiedPartitions()
        self._streamed = StreamedLeaves(store)
        self._roots: dict[TableId, TableId] | None = None
        """The table that has or had each leaf, None until a table is dropped."""
        self.columns = SilentColumns(store, park)
        self._snapshots: list[tuple[StorageSnapshot, Mapping[TableId, Columns]]] = []
        """The oldest snapshot that was not evaluated yet, and the newest, each with the marks written before it."""
        self._full: dict[TableId, Lsn] = {}
        """The commit of the newest version with REPLICA IDENTITY FULL, of tables whose key identifies rows."""
        self.verified_lsn = Lsn(0)
        """The end of the WAL before the last evaluated snapshot was read whose columns the stream has shown."""

    def begin_copy(self, table: TableId) -> None:
        """Delete the baseline of a table that is about to be copied, and the messages held for an earlier copy."""
        self._held.pop(table, None)
        keep_former_storage(self._store, table)
        self.forget(table)

    def forget(self, table: TableId) -> None:
        """Delete the baseline of a table."""
        self._truncates.forget(table)
        self._full.pop(table, None)
        self.columns.forget(table)
        self._emptied.forget(table)
        self._streamed.forget(table)
        if self._moves is not None:
            self._moves.forget(table)
            self._moves.release(table)
        if self._store.get_fingerprint(storage_subject(table)) is not None:
            self._store.delete_fingerprint(storage_subject(table))

    def record_copy(self, table: TableId, lsn: Lsn, storage: TableStorage) -> None:
        """Store the storage that a table was copied from as its baseline, unless the baseline is newer."""
        known = self._baseline(table)
        self._streamed.copied(table, lsn)
        if self._moves is not None:
            self._moves.applied(table, lsn)
        if known is None or known.lsn < lsn:
            self._keep(table, Baseline(lsn, 0, storage, {} if known is None else known.created_since(lsn)))

    def evaluate_held(self, record: TableRecord) -> None:
        """Evaluate the messages that arrived while the table was copied."""
        for report in self._held.pop(record.id, ()):
            if isinstance(report, TablesUnpublished):
                self._park_unpublished(record, report)
            elif isinstance(report, TablesDropped):
                self._evaluate_drop(record, report)
            else:
                self._evaluate_announcement(record, report)

    def record_segment(self, manifest: Manifest) -> None:
        """Record the TRUNCATEs of a segment, which change the storage too, the rows after them, and FULL identities."""
        self._truncates.add(manifest)
        for relation in manifest.relations:
            if relation.schema.identity is IdentityKind.FULL:
                table = relation.schema.id
                self._full[table] = relation.commit_lsn
                known = self._baseline(table)
                if known is not None and known.storage.primary is not None and not known.storage.primary.full:
                    primary = replace(known.storage.primary, full=True)
                    self._keep(table, replace(known, storage=replace(known.storage, primary=primary)))

    def table_altered(self, record: TableRecord, report: _Announced) -> None:
        """Evaluate an announced statement. While the table is copied, hold it until the copy's snapshot is known."""
        if isinstance(record.phase, DataSync):
            self._held.setdefault(record.id, []).append(report)
        elif not isinstance(record.phase, Init):
            self._evaluate_announcement(record, report)

    def tables_dropped(self, records: Iterable[TableRecord], report: TablesDropped) -> None:
        """Evaluate an announced DROP of tables. Tables that are copied hold it like `table_altered`."""
        known = list(records)
        if self._roots is None:
            self._roots = {}
            for record in known:
                self._note_leaves(record.id, self._baseline(record.id))
        roots = {self._roots.get(table) for table in report.tables}
        for record in known:
            if isinstance(record.phase, DataSync):
                self._held.setdefault(record.id, []).append(report)
            elif record.id in roots and not isinstance(record.phase, Init):
                self._evaluate_drop(record, report)

    def table_unpublished(self, record: TableRecord, report: TablesUnpublished) -> None:
        """Park a table whose changes are not in the stream. While it is copied, hold the report like `table_altered`.

        A shadow copy begins again, as its snapshot may be older.
        """
        if isinstance(record.phase, DataSync):
            self._held.setdefault(record.id, []).append(report)
        elif not isinstance(record.phase, Init):
            self._park_unpublished(record, report)

    def leaves_streamed(self, root: TableRecord, report: LeavesStreamed) -> None:
        """Keep which leaves of a table the next look at the catalog has to show."""
        known = self._baseline(root.id)
        if not isinstance(root.phase, Init):
            self._streamed.add(report, () if known is None else known.storage_but_for().leaves)

    def take_examined(self) -> Mapping[TableId, int | None]:
        """Return the partitions that the next snapshot has to examine."""
        return self._emptied.take_wanted()

    @property
    def still_examined(self) -> Mapping[TableId, int | None]:
        """The partitions that were not examined yet."""
        return self._emptied.waiting

    def add_examined(self, snapshot: StorageSnapshot, records: Mapping[TableId, TableRecord]) -> None:
        """Remove the rows of partitions that were empty at the end of a snapshot.

        Park the table if another one has no row from before, because it may have been truncated and filled again.
        """
        for table, leaves in self._emptied.answered(snapshot).items():
            record, storage, known = records.get(table), snapshot.tables.get(table), self._baseline(table)
            assert self._moves is not None
            if record is not None and storage is not None and known is not None and not needs_resync(record.phase):
                # The rows of one that is gone meanwhile leave with it.
                left = leaves & storage.leaves.keys() & known.storage.leaves.keys()
                keeps = self._moves.keeps(record)
                # What a partition has that was filled again is in the stream.
                empty = left - snapshot.kept if keeps else left & snapshot.emptied
                if (keeps or left - empty <= snapshot.kept) and (
                    not empty or self._moves.remove(record, storage, empty, snapshot.end, 0)
                ):
                    renewed = {leaf: storage.leaves[leaf] for leaf in left}
                    stored = replace(known.storage, leaves={**known.storage.leaves, **renewed})
                    self._keep(table, replace(known, storage=stored))
                    self._emptied.explained(table, left, snapshot.end)
                else:
                    what = "a partition was rewritten (VACUUM FULL, CLUSTER), or truncated and filled again"
                    self._park(record, rows_changed(record.name, RowsChanged("partition_changed", what)))
            self._moves.release(table)

    def add_snapshot(self, snapshot: StorageSnapshot, marked: Mapping[TableId, Columns] | None = None) -> None:
        """Queue a snapshot of the catalog for `evaluate_snapshots`. ``marked`` has the marks written just before it.

        The oldest waiting snapshot stays queued. If only the newest were kept, a stream that always trails would never
        have one evaluated.
        """
        earlier = dict(kv for _, marks in self._snapshots[1:] for kv in marks.items())
        self._snapshots = [*self._snapshots[:1], (snapshot, earlier | dict(marked or {}))]

    def evaluate_snapshots(self, tables: Iterable[TableRecord], staged: Lsn) -> None:
        """Evaluate each queued snapshot that ends at or below the LSN ``staged``."""
        while self._snapshots and staged >= self._snapshots[0][0].end:
            snapshot, marked = self._snapshots.pop(0)
            self._evaluate_snapshot(snapshot, tables)
            if self.columns.compare(snapshot, marked, tables) and not self._explains(tables):
                self.verified_lsn = max(self.verified_lsn, snapshot.start)

    def _primary(self, table: TableId, known: Baseline, snapshot: StorageSnapshot) -> PrimaryKey | None:
        """Return the key in a snapshot, or the former one while there is none, so that the next one is another.

        It counts as FULL if the table was that later.
        """
        primary = snapshot.tables[table].primary or known.storage.primary
        later = self._full.get(table, Lsn(0)) >= snapshot.start
        return replace(primary, full=True) if primary is not None and later else primary

    def _explains(self, tables: Iterable[TableRecord]) -> bool:
        """Return True if a table still has rows of a partition that this snapshot shows as emptied or gone."""
        if self._moves is None:
            return False
        streaming = (r.id for r in tables if not (isinstance(r.phase, Errored) or r.suspended))
        return bool(self._emptied.waiting) or any(map(self._moves.is_pending, streaming))

    def _evaluate_snapshot(self, snapshot: StorageSnapshot, tables: Iterable[TableRecord]) -> None:
        for record in tables:
            storage, known = snapshot.tables.get(record.id), self._baseline(record.id)
            if storage is None or isinstance(record.phase, Init | DataSync) or needs_resync(record.phase):
                continue
            if self._emptied.is_examined(record.id):
                continue
            if known is None:
                if not storage.flaws:
                    self._keep(record.id, Baseline(snapshot.start, 0, storage))
                elif not isinstance(record.phase, Errored):
                    # The copy of an errored table was refused, and may be retried.
                    self._park_flawed(record, storage.flaws)
                continue
            if snapshot.start < known.lsn or (known.xid and not snapshot.shows(known.xid)):
                continue
            leaves = known.storage_but_for().leaves.keys()
            if lost := self._streamed.lost(record.id, leaves, snapshot):
                what = "a partition was created or attached, and has left again with rows that were streamed meanwhile"
                self._park(record, rows_changed(record.name, RowsChanged("partition_changed", what, lost)))
                continue
            storage = replace(storage, primary=self._primary(record.id, known, snapshot))
            storage = self._streamed.with_rows(storage, record.id, leaves)
            storage = self._emptied.without_explained(record.id, storage, known.storage, snapshot.start)
            unseen = {o: m for o, m in known.created.items() if m.xid and not snapshot.shows(m.xid)}
            witness = Witness(
                truncates=self._truncates.of(record.id),
                follows=bool(known.xid),
                emptied=self._truncates.left_empty(record.id, snapshot),
            )
            # Each row from before the transactions that run now is then the TRUNCATE's, and its partition intact.
            since = snapshot.horizon if self._truncates.wrote_alone(record.id, snapshot) else None
            self._evaluate(record, known, Baseline(snapshot.start, 0, storage, unseen), witness, since)
            self._streamed.compared(record.id, snapshot)
            if not needs_resync(record.phase) and not self._emptied.is_examined(record.id):
                self._emptied.intact(record.id, snapshot.horizon)
            self._truncates.shown(record.id, snapshot)

    def _evaluate_announcement(self, record: TableRecord, report: _Announced) -> None:
        known = self._baseline(record.id)
        if known is None or known.has(report) or needs_resync(record.phase):
            return
        if isinstance(report, PartitionsCreated):
            if not self._park_flawed(record, (leaf.flaw for leaf in report.leaves.values() if leaf.flaw is not None)):
                self._keep(record.id, known.with_created(report.leaves, report))
            return
        truncates = self._truncates.of(record.id)
        own = frozenset({report.xid}) if report.truncated else frozenset[int]()
        if isinstance(report, PartitionsAltered):
            now, casts = known.with_altered(report.leaves, report), dict[int, Cast]()
            before, after = known.storage_but_for(), now.storage_but_for()
        else:
            if report.at < known.lsn:
                known = known.with_doubt(report.storage.leaves)
            unseen = {oid: made for oid, made in known.created.items() if oid not in report.storage.leaves}
            now, casts = Baseline(report.at, report.xid, report.storage, unseen), dict(report.casts)
            before, after = known.storage_but_for(unseen), now.storage
        if report.emptied:
            # Whatever the statement did to the rows, the TRUNCATE in the stream deletes them.
            if not self._park_flawed(record, after.flaws):
                self._keep(record.id, now)
            return
        if before == after:
            self._park_flawed(record, after.flaws)
            return
        witness = Witness(True, casts, truncates | own, follows=bool(known.xid), truncated=report.truncated)
        self._compare(record, before, after, now, witness, report if isinstance(report, TableAltered) else None)

    def _evaluate_drop(self, record: TableRecord, report: TablesDropped) -> None:
        """Remove the rows of partitions that were dropped.

        If that is not possible, a snapshot of the catalog shows later that they are gone.
        """
        known = self._baseline(record.id)
        if known is None or record.id in report.tables or known.has(report) or needs_resync(record.phase):
            return
        before = known.storage_but_for(())
        gone = before.leaves.keys() & report.tables
        if not gone or self._moves is None:
            return
        if not self._moves.remove(record, before, gone, report.committed, report.ordinal):
            return
        left = {oid: leaf for oid, leaf in known.storage.leaves.items() if oid not in gone}
        created = {oid: made for oid, made in known.created.items() if oid not in gone}
        storage = replace(known.storage, leaves=left)
        self._keep(record.id, Baseline(max(known.lsn, report.at), report.xid, storage, created))

    def _park_unpublished(self, record: TableRecord, report: TablesUnpublished) -> None:
        known = self._baseline(record.id)
        if known is not None and report.at < known.lsn:
            return
        if not needs_resync(record.phase):
            self._park(record, report.error(record.name))
        elif record.resync.has_copy and not record.resync.abandoned:
            record.resync.restart()

    def _evaluate(
        self, record: TableRecord, known: Baseline, now: Baseline, witness: Witness, since: int | None
    ) -> None:
        before = known.storage_but_for(now.created)
        if before == now.storage and not (known.xid or known.created):
            self._park_flawed(record, now.storage.flaws)
            return
        self._compare(record, before, now.storage, now, witness, since=since)

    def _compare(
        self,
        record: TableRecord,
        before: TableStorage,
        after: TableStorage,
        now: Baseline,
        witness: Witness,
        statement: TableAltered | None = None,
        since: int | None = None,
    ) -> None:
        """Park the table if its rows changed unseen, else keep the new baseline.

        If all partitions got their files together, one with a row from before the transaction ``since`` is intact.
        """
        if self._park_flawed(record, after.flaws):
            return
        version = self._store.get_table_schema(record.id, NEWEST_VERSION)
        columns = () if version is None else version.columns
        names = {c.attnum: c.name for c in columns}
        if self._retypes_in_utc:
            # Not one that is masked, or stored as text.
            moments = frozenset(c.attnum for c in columns if c.type.kind in MOMENTS and c.mask is None)
            witness = replace(witness, moments=moments)
        keyless = find_missing_key(before, after, witness) if record.place.mode == TableMode.UPSERT else None
        found = keyless or find_change(record.id, names, before, after, witness)
        if found is not None and self._moves is not None:
            at = None if statement is None else (statement.committed, statement.ordinal)
            found, before = self._move(self._moves, record, names, before, after, found, witness, at)
        if found is None:
            self._keep(record.id, now)
            return
        horizon = since if found.together else None
        if not found.renewed & now.created.keys() and self._examine(
            record, names, before, after, found, witness, horizon
        ):
            # Until that is known, the baseline has the former files.
            former = {leaf: before.leaves[leaf] for leaf in found.renewed}
            self._keep(record.id, replace(now, storage=replace(now.storage, leaves={**now.storage.leaves, **former})))
            return
        _log.error("table %s is parked: %s [%s]", record.name, found.what, found.code)
        self._park(record, rows_changed(record.name, found))

    def _move(
        self,
        moves: PartitionMoves,
        record: TableRecord,
        names: Mapping[int, str],
        before: TableStorage,
        after: TableStorage,
        found: RowsChanged,
        witness: Witness,
        at: tuple[Lsn, int] | None,
    ) -> tuple[RowsChanged | None, TableStorage]:
        """Let rows leave or enter the table with their partitions. Return what else has changed since which storage.

        ``at`` is the place of the statement in the stream, None if it is unknown.
        """
        if found.gone and moves.keeps(record):
            moves.remove(record, before, found.gone, *(at or (self.verified_lsn, 0)))
            left = {oid: leaf for oid, leaf in before.leaves.items() if oid not in found.gone}
            before = replace(before, leaves=left)
            later = find_change(record.id, names, before, after, witness)
            if later is None or not later.arrived:
                return later, before
            found = later
        if not (found.arrived or (found.gone and at is not None)):
            return found, before
        leaves = {oid: leaf for oid, leaf in before.leaves.items() if oid not in found.gone}
        moved = replace(before, leaves={**leaves, **{oid: after.leaves[oid] for oid in found.arrived}})
        rest = find_change(record.id, names, moved, after, witness)
        if rest is not None and not rest.renewed:
            return rest, before
        if at is None:
            brought = moves.bring(record, before, after, found.arrived)
            return (rest, moved) if brought else (found, before)
        if found.arrived & before.leaves.keys():
            # Nothing has announced that they were detached, so the stream does not show when.
            return found, before
        if found.gone and not moves.remove(record, before, found.gone, *at):
            return replace(found, what=f"{found.what}, and its bounds do not show exactly which these are"), before
        if found.arrived and not moves.arrive(record, found.arrived, *at):
            return found, before
        return rest, moved

    def _examine(
        self,
        record: TableRecord,
        names: Mapping[int, str],
        before: TableStorage,
        now: TableStorage,
        found: RowsChanged,
        witness: Witness,
        horizon: int | None,
    ) -> bool:
        """Find out what happened to partitions with new files. Return False if that would not help."""
        if not found.renewed:
            return False
        rest = find_change(record.id, names, _with_files(before, now, found.renewed), now, witness)
        if rest is not None or self._moves is None or not self._moves.can_hold:
            return False
        self._moves.hold(record.id)
        self._emptied.examine(record.id, found.renewed, horizon)
        return True

    def _park_flawed(self, record: TableRecord, flaws: Iterable[LeafFlaw]) -> bool:
        """Park a table with a flawed partition, whose changes may be wrong. No copy has begun with one."""
        error = flaw_error(record.name, flaws)
        if error is not None:
            self._park(record, error)
        return error is not None

    def _baseline(self, table: TableId) -> Baseline | None:
        text = self._store.get_fingerprint(storage_subject(table))
        return None if text is None else Baseline.from_text(text)

    def _note_leaves(self, table: TableId, baseline: Baseline | None) -> None:
        if self._roots is not None and baseline is not None:
            self._roots.update(dict.fromkeys((*baseline.storage.leaves, *baseline.created), table))

    def _keep(self, table: TableId, baseline: Baseline) -> None:
        self._note_leaves(table, baseline)
        self._store.store_fingerprint(storage_subject(table), baseline.to_text())


def _with_files(before: TableStorage, now: TableStorage, leaves: Iterable[TableId]) -> TableStorage:
    """Return the earlier storage with the present files of some leaves."""
    return replace(before, leaves={**before.leaves, **{leaf: now.leaves[leaf] for leaf in leaves}})


def rows_changed(table: QualifiedTable, found: RowsChanged) -> NeedsOperator:
    """Return the error of a table whose rows at the destination differ from those at the source."""
    hint = resync_command(table)
    if found.code == codes.PARTITION_CHANGED:
        return NeedsOperator("partition_changed", f"table {table}: {found.what}", hint=hint)
    if found.code == codes.KEY_CHANGED:
        return NeedsOperator("key_changed", f"table {table}: {found.what}", hint=hint)
    if found.code == codes.TYPE_CHANGED:
        return NeedsOperator("type_changed", f"table {table}: {found.what}", hint=hint)
    return NeedsOperator("table_rewritten", f"table {table}: {found.what}", hint=hint)
