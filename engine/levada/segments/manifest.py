"""The manifest of a segment. It is written last and atomically, so a segment exists exactly if its manifest does.

Segments that no table needs are removed in any order, so a gap between segments is not an error by itself. Therefore
each manifest has the end of every table's previous segment, in `Manifest.newest`. If these ends do not lead back to the
position that a table has applied, the table lacks a segment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from pydantic import TypeAdapter, ValidationError

from levada.pgoutput.changes import RelationChange, Truncate
from levada.schema import ReplicatedTableSchema
from levada.segments.checksums import seal, unseal
from levada.segments.transactions import TransactionFile
from levada.values import Lsn, SnapshotId, TableId, Witness

MANIFEST_VERSION: Final = 6


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """One Parquet file of changes of one version of one table, in WAL order.

    ``path`` is relative to the staging root. ``first_lsn`` and ``last_lsn`` are commit LSNs, both inclusive.
    ``checksums`` has one CRC-32 for each block of the file, see `levada.segments.checksums`.
    """

    path: str
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

    ``schemas`` has every version to which a file refers. ``relations`` and ``truncates`` are the changes that are not
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
    schemas: tuple[ReplicatedTableSchema, ...]
    relations: tuple[RelationChange, ...]
    truncates: tuple[Truncate, ...]
    transactions: int
    committed: TransactionFile
    first_commit_ts_us: int | None
    last: Witness | None
    newest: Mapping[TableId, Lsn]

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
        paths = tuple(f.path for f in self.files)
        return (*paths, self.committed.path) if self.committed.path else paths

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

    @property
    def newest_with(self) -> Mapping[TableId, Lsn]:
        """The end of each table's newest segment, this one included."""
        return {**self.newest, **dict.fromkeys(self.tables, self.end_lsn)}

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
            return _codec().validate_json(unseal(data, MANIFEST_VERSION))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


@cache
def _codec() -> TypeAdapter[Manifest]:
    return TypeAdapter(Manifest)
