"""The manifest of a segment. It is written last and atomically, so a segment exists exactly if its manifest does.

Segments that no table needs are removed in any order, so a gap between segments is not an error by itself. Therefore
each manifest has the end of every table's previous segment, in `Manifest.newest`. If these ends do not lead back to the
position that a table has applied, the table lacks a segment.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from pydantic import TypeAdapter, ValidationError

from levada.pgoutput.changes import RelationChange, Truncate
from levada.schema import ReplicatedTableSchema
from levada.segments.checksums import seal, unseal
from levada.segments.ends import Ends
from levada.segments.files import Files, SegmentFile, SegmentFiles
from levada.segments.transactions import TransactionFile
from levada.segments.versions import TableVersion
from levada.values import Lsn, TableId, Witness

MANIFEST_VERSION: Final = 8
EARLY_VERSION: Final = 9
"""The version of one whose rows were written before their COMMIT, which a program that knows only 8 must not read."""
PARTLY_VERSION: Final = 10
"""The version of one with changes that were rolled back, which a program that knows only 9 must not read."""


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
    files: Files
    versions: tuple[TableVersion, ...]
    relations: tuple[RelationChange, ...]
    truncates: tuple[Truncate, ...]
    transactions: int
    committed: TransactionFile
    first_commit_ts_us: int | None
    last: Witness | None
    newest: Ends

    @classmethod
    def of_file(cls, pipeline: str, epoch: int, file: SegmentFile, schema: ReplicatedTableSchema) -> Manifest:
        """Return the manifest of one file of a transaction in progress, as a batch takes it. It is never written."""
        return cls(
            pipeline=pipeline,
            epoch=epoch,
            start_lsn=Lsn(0),
            end_lsn=Lsn(file.last_lsn + 1),
            files=SegmentFiles.of([file]),
            versions=(TableVersion.of(schema),),
            relations=(),
            truncates=(),
            transactions=0,
            committed=TransactionFile.none(),
            first_commit_ts_us=None,
            last=None,
            newest={},
        )

    @property
    def name(self) -> str:
        """The segment's name. Names sort in WAL order."""
        return f"{self.start_lsn.hex}-{self.end_lsn.hex}-{self.epoch:08d}"

    @property
    def total_rows(self) -> int:
        """The number of row changes."""
        return self.files.size()[0]

    @property
    def total_bytes(self) -> int:
        """The size of the files in bytes."""
        return self.files.size()[1] + (self.committed.bytes if self.committed.path else 0)

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths of the files to which the manifest refers."""
        return (*self.files.paths, self.committed.path) if self.committed.path else self.files.paths

    def files_of(self, table: TableId) -> tuple[SegmentFile, ...]:
        """Return the files with changes of a table, in WAL order. The time grows only slightly with other tables."""
        return self.files.of_table(table)

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
        changed = self.files.tables | {r.schema.id for r in self.relations}
        return changed.union(*(t.tables for t in self.truncates))

    def dumps(self) -> bytes:
        """Return the manifest as JSON."""
        version = MANIFEST_VERSION if self.files.commit_ts_us is None else EARLY_VERSION
        version = PARTLY_VERSION if self.files.rolled_back else version
        return seal(_codec().dump_json(self), version)

    @classmethod
    def loads(cls, data: bytes) -> Manifest:
        """Parse the result of `dumps`.

        Raise DamageError for a damaged document, VersionError for an intact one of another version, and ValueError for
        an intact one of another form.
        """
        try:
            manifest = _codec().validate_json(unseal(data, MANIFEST_VERSION, EARLY_VERSION, PARTLY_VERSION))
            return replace(manifest, versions=tuple(v.shared() for v in manifest.versions))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            raise ValueError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


@cache
def _codec() -> TypeAdapter[Manifest]:
    return TypeAdapter(Manifest)
