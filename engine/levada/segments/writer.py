"""The writer of one segment. It writes rows to files on arrival, and the manifest then makes them a segment.

A table with many rows has a Parquet file of its own. The tables with few rows share a file.

Memory is bounded even for a huge transaction, because its row groups are written before its end is known. If the end
never arrives, no manifest refers to the files.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from levada.pgoutput.changes import ChangeBatch, RelationChange, TableChanges, Truncate
from levada.schema import ReplicatedTableSchema
from levada.schema.changes import COMMIT_TS
from levada.segments.files import SegmentFile, SegmentFiles
from levada.segments.ledger import Ledger
from levada.segments.manifest import Manifest
from levada.segments.parts import Layout, Part
from levada.segments.pieces import PIECE_BYTES, SharedFile
from levada.segments.rolled_back import Ranges, begun, covered, renumbered
from levada.segments.staging import Staging
from levada.segments.transactions import TransactionFile
from levada.segments.versions import TableVersion
from levada.values import Lsn, SnapshotId, TableId, Witness

MAX_BUFFERED_BYTES: Final = 64 << 20
"""Arrow bytes that all tables of a segment may buffer together. Above it, the largest buffers are written first."""


UNKNOWN_COMMIT: Final = Lsn((1 << 63) - 1)
"""The commit LSN of rows that are added before their transaction's COMMIT. No transaction has it."""


@dataclass(frozen=True, slots=True)
class CommittedAs:
    """The COMMIT of a transaction. ``commit_ts_us`` is in microseconds since 1970-01-01 UTC."""

    commit_lsn: Lsn
    commit_ts_us: int


class SegmentWriter:
    """One open segment. Not thread-safe. It must not be used after `commit` or `abort`.

    ``ledger`` has the end of each table's newest segment. `commit` adds this segment to it. With a ``name`` the segment
    is that of one transaction, whose changes are added with the commit `UNKNOWN_COMMIT`. It needs `committed_as` before
    `commit`. Its files begin with ``name``, which no other segment of the pipeline may have.
    """

    def __init__(
        self,
        staging: Staging,
        pipeline: str,
        epoch: int,
        start_lsn: Lsn,
        *,
        ledger: Ledger | None = None,
        name: str | None = None,
        row_group_bytes: int | None = None,
        max_buffered_bytes: int = MAX_BUFFERED_BYTES,
    ) -> None:
        self.start_lsn = start_lsn
        self.rows = 0
        self.bytes = 0
        """Arrow bytes that were added, including those already written."""
        self.buffered_bytes = 0
        """Arrow bytes that are buffered in memory."""
        self.transactions = 0
        self._staging = staging
        self._pipeline = pipeline
        self._epoch = epoch
        self._ledger = ledger or Ledger()
        row_group_bytes = row_group_bytes or staging.limits.row_group_bytes
        self._row_group_bytes = row_group_bytes
        self._max_buffered_bytes = max_buffered_bytes
        self._piece_bytes = min(PIECE_BYTES, row_group_bytes - 1)
        self._open: dict[TableId, Part] = {}
        self._parts: list[Part] = []
        self._schemas: dict[tuple[TableId, SnapshotId], ReplicatedTableSchema] = {}
        self._relations: list[RelationChange] = []
        self._truncates: list[Truncate] = []
        self._committed: list[pa.Table] = []
        self._in_progress = name is not None
        self._path = f"{pipeline}/{name or f'{start_lsn.hex}-{epoch:08d}'}"
        self._committed_as: CommittedAs | None = None
        self._rolled_back: Ranges = ()
        self._transactions_path = f"{self._path}-transactions.parquet"
        self._shared = SharedFile(staging, f"{self._path}-shared.pieces")
        self._closed = False
        self._published = False
        self._first_commit_ts_us: int | None = None
        self._last: Witness | None = None

    @property
    def empty(self) -> bool:
        """Return True if nothing was added that a segment contains."""
        return not (self.rows or self._relations or self._truncates)

    def add(self, batch: ChangeBatch) -> None:
        """Add the changes of a slice of the stream."""
        for item in batch.items:
            match item:
                case TableChanges():
                    self._add_rows(item)
                case RelationChange():
                    self._relations.append(item)
                    self._schemas[item.schema.id, item.schema.snapshot_id] = item.schema
                case Truncate():
                    self._begin_at(item.commit_ts_us)
                    self._truncates.append(item)
        self.transactions += batch.transactions
        if batch.committed.num_rows:
            self._committed.append(batch.committed)
            self.bytes += batch.committed.nbytes
        if batch.last is not None:
            self._begin_at(batch.last.commit_ts_us)
            self._last = batch.last
        self._bound_memory()

    def committed_as(self, commit: CommittedAs, start_lsn: Lsn) -> None:
        """Give all changes their commit. The segment begins at ``start_lsn``, the end of the one before."""
        self._committed_as, self.start_lsn = commit, start_lsn
        self._first_commit_ts_us = commit.commit_ts_us
        numbers = [renumbered(self._rolled_back, t.ordinal) for t in self._truncates]
        self._truncates = [
            replace(t, commit_lsn=commit.commit_lsn, commit_ts_us=commit.commit_ts_us, ordinal=number)
            for t, number in zip(self._truncates, numbers, strict=True)
            if number is not None
        ]

    def roll_back(self, ranges: Ranges) -> list[SegmentFile]:
        """Leave out the changes with these ordinals, which are all that were rolled back so far.

        Remove the Parquet files of which nothing is left, and return those of them that `complete_files` has returned.
        """
        self._rolled_back = ranges
        gone = [part for part in self._parts if part.closed and all(covered(ranges, *o) for o in part.ordinals)]
        removed: list[SegmentFile] = []
        for part in gone:
            if any(f.offset is not None for f in part.files):
                continue
            removed += part.files[: part.reported]
            self._parts.remove(part)
            if self._open.get(part.schema.id) is part:
                del self._open[part.schema.id]
            part.discard(self._staging)
        return removed

    def complete_files(self) -> list[tuple[SegmentFile, ReplicatedTableSchema]]:
        """Return the Parquet files that are complete since the last call, with their versions."""
        found: list[tuple[SegmentFile, ReplicatedTableSchema]] = []
        for part in self._parts:
            if part.closed and part.reported < len(part.files):
                new = self._files_of(part)[part.reported :]
                found += [(f, part.schema) for f in new if f.offset is None]
                part.reported = len(part.files)
        return found

    def spill(self) -> None:
        """Write all buffered rows to the files, so that their memory is free."""
        for part in self._open.values():
            self._flush(part)

    def commit(self, end_lsn: Lsn) -> Manifest:
        """Make the segment ``(start_lsn, end_lsn]`` with all added changes durable and visible. Return its manifest."""
        for part in self._parts:
            part.close(self._staging, self._shared, self._piece_bytes)
        self._shared.close()
        self._closed = True
        committed = TransactionFile.write(self._staging, self._transactions_path, self._committed)
        manifest = Manifest(
            pipeline=self._pipeline,
            epoch=self._epoch,
            start_lsn=self.start_lsn,
            end_lsn=end_lsn,
            files=SegmentFiles.of(sorted(self._files(), key=lambda f: f.table)),
            versions=tuple(TableVersion.of(self._schemas[key]) for key in sorted(self._schemas)),
            relations=tuple(self._relations),
            truncates=tuple(self._truncates),
            transactions=self.transactions,
            committed=committed,
            first_commit_ts_us=self._first_commit_ts_us,
            last=self._last,
            newest=self._ledger.ends,
        )
        self._staging.publish(
            f"{self._pipeline}/{manifest.name}.json",
            manifest.dumps(),
            naming=manifest.paths,
            begun=self._may_be_visible,
        )
        self._ledger.add_segments([manifest])
        return manifest

    def abort(self) -> None:
        """Discard the added changes and remove the files.

        If `commit` failed in its last step, nothing is removed, because the manifest may be visible all the same. The
        next start finds the segment, or removes the files if there is no manifest.
        """
        if self._published:
            return
        for part in self._parts:
            part.discard(self._staging)
        self._shared.discard()
        if self._closed:
            self._staging.remove(self._transactions_path)
        self._open.clear()
        self._parts.clear()

    def _files(self) -> list[SegmentFile]:
        files, commit = [f for p in self._parts for f in self._files_of(p)], self._committed_as
        if commit is None:
            return files
        lsn, at = commit.commit_lsn, commit.commit_ts_us
        return [replace(f, first_lsn=lsn, last_lsn=lsn, commit_ts_us=at) for f in files]

    def _files_of(self, part: Part) -> list[SegmentFile]:
        if not self._rolled_back:
            return part.files
        ends = zip(part.files, part.ordinals, strict=True)
        return [replace(f, rolled_back=begun(self._rolled_back, last)) for f, (_, last) in ends]

    def _may_be_visible(self) -> None:
        self._published = True

    def _add_rows(self, changes: TableChanges) -> None:
        rows = changes.rows
        if not rows.num_rows:
            return
        layout = Layout.of(rows)
        part = self._open.get(changes.schema.id)
        if part is None or not part.accepts(changes.schema, layout):
            if part is not None:
                self._close(part)
                if part.schema.snapshot_id == changes.schema.snapshot_id:
                    layout |= part.layout
            part = self._begin_part(changes.schema, layout)
        size = rows.nbytes
        part.add(changes, layout, size)
        self.rows += rows.num_rows
        self.bytes += size
        self.buffered_bytes += size
        if self._first_commit_ts_us is None:
            self._begin_at(rows.column(COMMIT_TS)[0].value)
        if part.buffered_bytes >= self._row_group_bytes:
            self._flush(part)
            if self._in_progress and part.exceeds(self._staging.limits):
                self._close(part)

    def _begin_part(self, schema: ReplicatedTableSchema, layout: Layout) -> Part:
        part = Part(f"{self._path}-{int(schema.id)}-{len(self._parts):05d}.parquet", schema, layout)
        self._open[schema.id] = part
        self._parts.append(part)
        self._schemas[schema.id, schema.snapshot_id] = schema
        return part

    def _flush(self, part: Part) -> None:
        self.buffered_bytes -= part.buffered_bytes
        part.flush(self._staging, self._shared, self._piece_bytes)

    def _close(self, part: Part) -> None:
        self.buffered_bytes -= part.buffered_bytes
        part.close(self._staging, self._shared, self._piece_bytes)

    def _begin_at(self, commit_ts_us: int) -> None:
        if self._first_commit_ts_us is None:
            self._first_commit_ts_us = commit_ts_us

    def _bound_memory(self) -> None:
        if self.buffered_bytes <= self._max_buffered_bytes:
            return
        for part in sorted(self._open.values(), key=lambda p: -p.buffered_bytes):
            self._flush(part)
            if self.buffered_bytes <= self._max_buffered_bytes // 2:
                return
