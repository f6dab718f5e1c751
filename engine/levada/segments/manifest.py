"""The manifest of a segment. It is written last and atomically, so a segment exists exactly if its manifest does.

Segments that no table needs are removed in any order, so a gap between segments is not an error by itself. Therefore
each manifest has the end of every table's previous segment, in `Manifest.newest`. If these ends do not lead back to the
position that a table has applied, the table lacks a segment.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from functools import cache
from operator import attrgetter
from typing import Final

from pydantic import TypeAdapter, ValidationError

from levada.pgoutput.changes import RelationChange, Truncate
from levada.schema import ReplicatedTableSchema
from levada.segments.checksums import seal, unseal
from levada.segments.ends import Ends
from levada.segments.transactions import TransactionFile
from levada.segments.versions import TableVersion
from levada.values import Lsn, SnapshotId, TableId, Witness

MANIFEST_VERSION: Final = 7
_TABLE: Final = attrgetter("table")


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """Changes of one version of one table, in WAL order: a Parquet file, or a piece of the segment's shared file.

    ``path`` is relative to the staging root. ``offset`` is where the piece begins in the shared file, see
    `levada.segments.pieces`. It is None for a Parquet file. ``bytes`` is the size of the Parquet file or of the piece,
    and ``checksums`` has one CRC-32 for each block of it, see `levada.segments.checksums`. ``first_lsn`` and
    ``last_lsn`` are commit LSNs, both inclusive.
    """

    path: str
    offset: int | None
    table: TableId
    snapshot_id: SnapshotId
    rows: int
    bytes: int
    first_lsn: Lsn
    last_lsn: Lsn
    checksums: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of the WAL range ``(start_lsn, end_lsn]``, whose ends are ends of transactions.

    ``files`` are ordered by table, and those of a table in WAL order. ``versions`` has every version to which a file
    refers, ordered by table and snapshot ID. ``relations`` and ``truncates`` are the changes that are not
    rows, ordered by ``(commit_lsn, ordinal)``. ``transactions`` is the number of all transactions. ``committed`` has
    those with changes in the segment. ``first_commit_ts_us`` is the commit time of the first transaction, in
    microseconds since 1970-01-01 UTC. ``last`` is the last transaction, which may have no change in the segment. Both
    are None if there is no transaction. ``newest`` maps each table to the end of its newest segment before this one.
    Tables without an earlier segment are absent.
    """

    pipeline: str
    epoch: int
    start_lsn: Lsn
    end_lsn: Lsn
    files: tuple[SegmentFile, ...]
    versions: tuple[TableVersion, ...]
    relations: tuple[RelationChange, ...]
    truncates: tuple[Truncate, ...]
    transactions: int
    committed: TransactionFile
    first_commit_ts_us: int | None
    last: Witness | None
    newest: Ends

    @property
    def name(self) -> str:
        """The segment's name. Names sort in WAL order."""
        return f"{self.start_lsn.hex}-{self.end_lsn.hex}-{self.epoch:08d}"

    @property
    def total_rows(self) -> int:
        """The number of row changes."""
        return sum(f.rows for f in self.files)

    @property
    def total_bytes(self) -> int:
        """The size of the files in bytes."""
        return sum(f.bytes for f in self.files) + (self.committed.bytes if self.committed.path else 0)

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the files to which the manifest refers."""
        paths = tuple(dict.fromkeys(f.path for f in self.files))
        return (*paths, self.committed.path) if self.committed.path else paths

    def files_of(self, table: TableId) -> tuple[SegmentFile, ...]:
        """Return the files with changes of a table, in WAL order. The time grows only slightly with other tables."""
        begin = bisect_left(self.files, table, key=_TABLE)
        return self.files[begin : bisect_right(self.files, table, lo=begin, key=_TABLE)]

    def schema_of(self, file: SegmentFile) -> ReplicatedTableSchema:
        """Return the schema of a file's rows. Raise ValueError if it is missing."""
        version = (file.table, file.snapshot_id)
        at = bisect_left(self.versions, version, key=lambda v: (v.table, v.snapshot_id))
        if at == len(self.versions) or (self.versions[at].table, self.versions[at].snapshot_id) != version:
            raise ValueError(f"segment {self.name} has no version {file.snapshot_id} of table {file.table}")
        return self.versions[at].schema()

    @property
    def span_s(self) -> float:
        """Seconds between the first and the last commit, by the source's clock. The first change waited this long."""
        if self.first_commit_ts_us is None or self.last is None:
            return 0.0
        return max(0, self.last.commit_ts_us - self.first_commit_ts_us) / 1e6

    @property
    def tables(self) -> frozenset[TableId]:
        """The tables with a change in the segment."""
        changed = {f.table for f in self.files} | {r.schema.id for r in self.relations}
        return frozenset(changed.union(*(t.tables for t in self.truncates)))

    def dumps(self) -> bytes:
        """Return the manifest as JSON."""
        return seal(_codec().dump_json(self), MANIFEST_VERSION)

    @classmethod
    def loads(cls, data: bytes) -> Manifest:
        """Parse the result of `dumps`.

        Raise DamageError for a damaged document, VersionError for an intact one of another version, and ValueError for
        an intact one of another form.
        """
        try:
            manifest = _codec().validate_json(unseal(data, MANIFEST_VERSION))
            return replace(manifest, versions=tuple(v.shared() for v in manifest.versions))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


@cache
def _codec() -> TypeAdapter[Manifest]:
    return TypeAdapter(Manifest)
