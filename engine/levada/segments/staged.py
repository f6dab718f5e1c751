"""Batches of staged changes for a destination. They hold only file names and positions, so they are cheap to pickle."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from levada import codes
from levada.errors import NeedsOperator
from levada.pgoutput.changes import RelationChange, TableChanges, Truncate
from levada.pgoutput.events import Event, iter_events
from levada.schema import ReplicatedTableSchema, TableTarget
from levada.schema.changes import COMMIT_LSN, COMMIT_TS, ORDINAL
from levada.segments.batch import EventBatch, TableEvents
from levada.segments.checksums import DamageError, open_verified, read_verified
from levada.segments.files import SegmentFile
from levada.segments.limits import BatchLimits
from levada.segments.manifest import Manifest
from levada.segments.pieces import decode_piece
from levada.segments.projection import Projection, completed
from levada.segments.rolled_back import remaining
from levada.segments.staging import Staging, failures
from levada.values import Lsn, OnUnrepresentable, SnapshotId, TableId, resync_command


@dataclass(frozen=True, slots=True)
class TableStart:
    """The start of a table's part in a batch.

    It has the changes with a commit LSN of at least ``after``. The table has the target's schema version before them.
    """

    target: TableTarget
    after: Lsn


class StagedBatch(EventBatch):
    """The changes in the manifests for each table, from its start to ``until``, exclusive.

    Manifests are in WAL order.
    """

    def __init__(
        self,
        staging: Staging,
        manifests: Sequence[Manifest],
        starts: Sequence[TableStart],
        until: Lsn,
        policy: OnUnrepresentable = OnUnrepresentable.ERROR,
        limits: BatchLimits | None = None,
    ) -> None:
        limits = limits or BatchLimits()
        self.tables = tuple(s.target.id for s in starts)
        self.until = until
        self._changes = {s.target.id: _select(staging, manifests, s, until, policy, limits) for s in starts}
        self._staging = staging
        self._manifests = tuple(manifests)
        self._relations = tuple(r for m in manifests for r in m.relations if self._in_batch(r))
        self._truncates = tuple(
            sorted({t for c in self._changes.values() for t in c.truncates}, key=lambda t: (t.commit_lsn, t.ordinal))
        )

    def changes(self, table: TableId) -> StagedTable:
        """Return the changes of one table of ``tables``."""
        return self._changes[table]

    def __iter__(self) -> Iterator[Event]:
        """Iterate over the events of all tables in the order of (commit LSN, ordinal).

        Each has its original version. Raise NeedsOperator ``segment_damaged`` or ``staging_file_missing``.
        """
        streams: list[Iterable[TableChanges | RelationChange | Truncate]] = [self._relations, self._truncates]
        return iter_events([*streams, *(c.items() for c in self._changes.values())], self._committed())

    def _committed(self) -> Iterator[pa.RecordBatch]:
        names = [c.schema.name for c in self._changes.values()]
        for manifest in self._manifests:
            file = manifest.committed
            what = f"{file.path or manifest.name} with {file.rows} transactions of {', '.join(map(str, names))}"
            with _reading(file.path, what, resync_command(names[0])):
                yield from file.read(self._staging)

    def _in_batch(self, relation: RelationChange) -> bool:
        mine = self._changes.get(relation.schema.id)
        return mine is not None and mine.after <= relation.commit_lsn < self.until


@dataclass(slots=True)
class StagedTable(TableEvents):
    """The staged changes of one table."""

    staging: Staging
    target: TableTarget
    versions: tuple[ReplicatedTableSchema, ...]
    files: tuple[SegmentFile, ...]
    truncates: tuple[Truncate, ...]
    after: Lsn
    until: Lsn
    policy: OnUnrepresentable
    written: Mapping[SnapshotId, ReplicatedTableSchema]
    """The version of the rows in each file, by its snapshot ID."""
    share: tuple[int, int] = (0, 1)
    """The part of each file that is read, see `part`."""
    limits: BatchLimits = field(default_factory=BatchLimits)
    nulled: int = field(default=0, compare=False)
    tasks: int = field(default=0, compare=False)
    _nulled_in: dict[tuple[str, int | None], int] = field(default_factory=dict, init=False, compare=False)
    """The part of ``nulled`` from each file, by its path and offset."""

    @property
    def as_staged(self) -> bool:
        """True."""
        return True

    @property
    def on_this_machine(self) -> bool:
        """True for a plain path, which can be a volume of the driver alone. A folder with a URI is shared."""
        return "://" not in self.staging.uri

    def part(self, files: Sequence[SegmentFile], share: tuple[int, int] = (0, 1)) -> StagedTable:
        """Return the changes in some files, with only what is needed to read them.

        The parts of a Parquet file are row groups. A piece of a shared file is small, and all of it is in the part 0.
        """
        written = {v: self.written[v] for v in {f.snapshot_id for f in files}}
        return replace(self, files=tuple(files), share=share, truncates=(), written=written, nulled=0, tasks=0)

    def scan(
        self, columns: Sequence[str] | None = None, *, files: Sequence[SegmentFile] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the changes in WAL order, a row group at a time, projected to ``schema``.

        Raise Unrepresentable under the policy ``Error``. Raise NeedsOperator ``schema_change_unsupported`` if rows of
        an older version cannot be converted to the newest one.
        """
        # A table can have thousands of small files of one version.
        projections: dict[SnapshotId, Projection] = {}
        for file in self.files if files is None else files:
            version = file.snapshot_id
            if version not in projections:
                projections[version] = Projection.of(self.written[version], self.versions, columns, self.policy)
            yield from self._scan(file, projections[version])

    def items(self) -> Iterator[TableChanges]:
        """Yield the changes in WAL order, each in its original version.

        The newest version depends on the end of the batch, but the original version does not. So a replay with other
        batches yields the same changes. Raise Unrepresentable under the policy ``Error``.
        """
        for file in self.files:
            own = self.written[file.snapshot_id]
            for rows in self._scan(file, Projection.of(own, (own,), None, self.policy)):
                yield TableChanges(own, rows)

    def _scan(self, file: SegmentFile, projection: Projection) -> Iterator[pa.RecordBatch]:
        nulled = 0
        for rows in self._batches(file, projection):
            projected, more = projection.apply(rows)
            nulled += more
            self._count_nulled(file, nulled)
            yield projected

    def _count_nulled(self, file: SegmentFile, nulled: int) -> None:
        """Count the values of a file once, also if a destination scans it again. ``nulled`` is that of one scan."""
        place = (file.path, file.offset)
        if (more := nulled - self._nulled_in.get(place, 0)) > 0:
            self.nulled += more
            self._nulled_in[place] = nulled

    def _batches(self, file: SegmentFile, projection: Projection) -> Iterator[pa.RecordBatch]:
        what = f"{file.path} with {file.rows} changes of {self.schema.name}"
        with (
            _reading(file.path, what, resync_command(self.schema.name)),
            self.staging.input(file.path) as source,
        ):
            yield from self._row_groups(source, file, projection) if file.offset is None else self._piece(source, file)

    def _piece(self, source: pa.NativeFile, file: SegmentFile) -> Iterator[pa.RecordBatch]:
        assert file.offset is not None
        if self.share[0] > 0:
            return
        rows = _committed(decode_piece(read_verified(source, file.offset, file.bytes, file.checksums)), file)
        if not self._complete(file):
            rows = rows.filter(self._inside(rows.column(COMMIT_LSN)))
        if rows.num_rows:
            yield rows

    def _row_groups(self, source: pa.NativeFile, file: SegmentFile, projection: Projection) -> Iterator[pa.RecordBatch]:
        complete = self._complete(file)
        parquet = pq.ParquetFile(open_verified(source, file.bytes, file.checksums, self.staging.limits.whole_bytes))
        columns = projection.reads(parquet.schema_arrow.names, *((ORDINAL,) if file.rolled_back else ()))
        part, parts = self.share
        groups = parquet.num_row_groups
        for group in range(part * groups // parts, (part + 1) * groups // parts):
            if not complete and self._outside(parquet.metadata.row_group(group)):
                continue
            rows = parquet.read_row_group(group, columns=columns)
            if not complete:
                rows = rows.filter(self._inside(rows.column(COMMIT_LSN)))
            yield from (_committed(b, file) for b in rows.combine_chunks().to_batches())

    def _complete(self, file: SegmentFile) -> bool:
        return self.after <= file.first_lsn and file.last_lsn < self.until

    def _outside(self, group: pq.RowGroupMetaData) -> bool:
        for i in range(group.num_columns):
            column = group.column(i)
            if column.path_in_schema == COMMIT_LSN:
                lsn = column.statistics
                return bool(lsn.max < self.after or lsn.min >= self.until)
        return False

    def _inside(self, lsn: pa.ChunkedArray | pa.Array) -> pa.ChunkedArray | pa.Array:
        return pc.and_(pc.greater_equal(lsn, int(self.after)), pc.less(lsn, int(self.until)))


def other_key(manifests: Sequence[Manifest], start: TableStart, until: Lsn) -> Lsn | None:
    """Return the commit LSN below ``until`` from which other columns identify the table's rows, None if none do.

    The first transaction from the start on does not count: a batch that begins with another key has no former one. A
    version without a key does not count either.
    """
    table = start.target.id
    versions = [
        (relation.commit_lsn, relation.ordinal, relation.schema)
        for manifest in manifests
        for relation in manifest.relations
        if relation.schema.id == table and start.after <= relation.commit_lsn < until and relation.schema.key
    ]
    key = set(start.target.schema.key)
    for commit_lsn, _, version in sorted(versions, key=lambda v: (v[2].snapshot_id, v[0], v[1])):
        if set(version.key) != key and commit_lsn > start.after:
            return commit_lsn
        key = set(version.key)
    return None


def _committed(rows: pa.RecordBatch, file: SegmentFile) -> pa.RecordBatch:
    """Return the rows of a file that were committed, with their commit, if the file was written before it."""
    if file.rolled_back:
        rows = remaining(rows, file.rolled_back)
    if file.commit_ts_us is None:
        return rows
    for name, value in ((COMMIT_LSN, int(file.first_lsn)), (COMMIT_TS, file.commit_ts_us)):
        if (at := rows.schema.get_field_index(name)) >= 0:
            field = rows.schema.field(at)
            rows = rows.set_column(at, field, pa.repeat(pa.scalar(value, field.type), rows.num_rows))
    return rows


@contextmanager
def _reading(path: str, what: str, hint: str) -> Iterator[None]:
    """Raise NeedsOperator with ``hint`` if the file, which ``what`` describes, is missing or damaged."""
    try:
        with failures(f"read {path}"):
            yield
    except DamageError as error:
        raise NeedsOperator("segment_damaged", f"staging: {what} is damaged: {error}", hint=hint) from error
    except NeedsOperator as error:
        if error.code != codes.STAGING_FILE_MISSING:
            raise
        raise NeedsOperator(error.code, f"staging: {what} is missing", hint=hint) from error


def _select(
    staging: Staging,
    manifests: Sequence[Manifest],
    start: TableStart,
    until: Lsn,
    policy: OnUnrepresentable,
    limits: BatchLimits,
) -> StagedTable:
    first, after = start.target.schema, start.after
    table = first.id
    files: list[SegmentFile] = []
    truncates: list[Truncate] = []
    written: dict[SnapshotId, ReplicatedTableSchema] = {}
    newer: dict[SnapshotId, ReplicatedTableSchema] = {}
    for manifest in manifests:
        for file in manifest.files_of(table):
            if file.last_lsn >= after and file.first_lsn < until:
                files.append(file)
                written[file.snapshot_id] = manifest.schema_of(file)
        for relation in manifest.relations:
            if relation.schema.id == table and after <= relation.commit_lsn < until:
                newer[relation.schema.snapshot_id] = relation.schema
        truncates += [t for t in manifest.truncates if table in t.tables and after <= t.commit_lsn < until]
    # Versions from before the start are not newer than the start's schema, even if their number is higher: the version
    # of a copy has the number 0/0.
    newer |= {v: s for v, s in written.items() if v >= after and v > first.snapshot_id}
    newer.pop(first.snapshot_id, None)
    versions = (first, *(newer[v] for v in sorted(newer)))
    newest = completed(versions)
    return StagedTable(
        staging=staging,
        target=start.target.with_schema(newest),
        versions=(*versions[:-1], newest),
        files=tuple(files),
        truncates=tuple(truncates),
        after=after,
        until=until,
        policy=policy,
        written=written,
        limits=limits,
    )
