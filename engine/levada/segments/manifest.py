"""The manifest of a segment. It is written last and atomically, so a segment exists exactly if its manifest does.

Segments that no table needs are removed in any order, so a gap between segments is not an error by itself. Therefore
each manifest has the end of every table's previous segment, in `Manifest.newest`. If these ends do not lead back to the
position that a table has applied, the table lacks a segment.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from levada.pgoutput.changes import RelationChange, Truncate
from levada.schema import ReplicatedTableSchema
from levada.segments.checksums import seal, unseal
from levada.values import Lsn, SnapshotId, TableId, Witness

MANIFEST_VERSION: Final = 3


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
    checksums: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of the WAL range ``(start_lsn, end_lsn]``, whose ends are ends of transactions.

    ``schemas`` has every version to which a file refers. ``relations`` and ``truncates`` are the changes that are not
    rows, ordered by ``(commit_lsn, ordinal)``. ``first_commit_ts_us`` is the commit time of the first transaction, in
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
    first_commit_ts_us: int | None
    last: Witness | None
    newest: Mapping[TableId, Lsn] = field(default_factory=dict)

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
        return sum(f.bytes for f in self.files)

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
        data: dict[str, Any] = {
            "pipeline": self.pipeline,
            "epoch": self.epoch,
            "startLsn": str(self.start_lsn),
            "endLsn": str(self.end_lsn),
            "transactions": self.transactions,
            "newest": {str(int(table)): str(end) for table, end in self.newest.items()},
            "firstCommitTsUs": self.first_commit_ts_us,
            "last": None if self.last is None else self.last.to_json(),
            "files": [
                {
                    "path": f.path,
                    "table": int(f.table),
                    "snapshotId": str(f.snapshot_id),
                    "rows": f.rows,
                    "bytes": f.bytes,
                    "firstLsn": str(f.first_lsn),
                    "lastLsn": str(f.last_lsn),
                    "checksums": list(f.checksums),
                }
                for f in self.files
            ],
            "schemas": [s.to_json() for s in self.schemas],
            "relations": [
                {"commitLsn": str(r.commit_lsn), "ordinal": r.ordinal, "schema": r.schema.to_json()}
                for r in self.relations
            ],
            "truncates": [
                {
                    "commitLsn": str(t.commit_lsn),
                    "ordinal": t.ordinal,
                    "tables": [int(x) for x in t.tables],
                    "cascade": t.cascade,
                    "restartIdentity": t.restart_identity,
                    "commitTsUs": t.commit_ts_us,
                    "xid": t.xid,
                }
                for t in self.truncates
            ],
        }
        return seal(json.dumps(data, separators=(",", ":")).encode(), MANIFEST_VERSION)

    @classmethod
    def loads(cls, data: bytes) -> Manifest:
        """Parse the result of `dumps`.

        Raise DamageError for a damaged document, and VersionError for an intact one of another version.
        """
        raw = json.loads(unseal(data, MANIFEST_VERSION))
        return cls(
            pipeline=raw["pipeline"],
            epoch=raw["epoch"],
            start_lsn=Lsn.parse(raw["startLsn"]),
            end_lsn=Lsn.parse(raw["endLsn"]),
            transactions=raw["transactions"],
            newest={TableId(int(table)): Lsn.parse(end) for table, end in raw["newest"].items()},
            first_commit_ts_us=raw["firstCommitTsUs"],
            last=Witness.from_json(raw["last"]),
            files=tuple(
                SegmentFile(
                    path=f["path"],
                    table=TableId(f["table"]),
                    snapshot_id=SnapshotId.parse(f["snapshotId"]),
                    rows=f["rows"],
                    bytes=f["bytes"],
                    first_lsn=Lsn.parse(f["firstLsn"]),
                    last_lsn=Lsn.parse(f["lastLsn"]),
                    checksums=tuple(f["checksums"]),
                )
                for f in raw["files"]
            ),
            schemas=tuple(ReplicatedTableSchema.from_json(s) for s in raw["schemas"]),
            relations=tuple(
                RelationChange(Lsn.parse(r["commitLsn"]), r["ordinal"], ReplicatedTableSchema.from_json(r["schema"]))
                for r in raw["relations"]
            ),
            truncates=tuple(
                Truncate(
                    commit_lsn=Lsn.parse(t["commitLsn"]),
                    ordinal=t["ordinal"],
                    tables=tuple(TableId(x) for x in t["tables"]),
                    cascade=t["cascade"],
                    restart_identity=t["restartIdentity"],
                    commit_ts_us=t["commitTsUs"],
                    xid=t["xid"],
                )
                for t in raw["truncates"]
            ),
        )
