"""One table's pending segments, with running sums of their rows and bytes. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import takewhile

from levada.segments.ends import PackedEnds
from levada.segments.ledger import missing_end
from levada.segments.manifest import Manifest
from levada.values import Lsn, TableId


@dataclass(frozen=True, slots=True)
class Pending:
    """The changes that a table has left to apply.

    ``rows`` is an upper bound. ``oldest_commit_ts_us`` is in microseconds since 1970 UTC.
    """

    segments: int
    rows: int
    bytes: int
    oldest_commit_ts_us: int | None


NOTHING_PENDING = Pending(0, 0, 0, None)


@dataclass(slots=True, eq=False)
class StagedSegment:
    """A staged segment. ``holders`` is the number of tables and shadow copies that need it."""

    manifest: Manifest
    holders: int = 0

    @classmethod
    def of(cls, manifest: Manifest, tables: Collection[TableId]) -> StagedSegment:
        """Return the segment of a manifest, which changes ``tables``. Nothing needs it yet.

        The ends of other tables' segments are left out: with many tables and segments they would fill the memory.
        """
        return cls(replace(manifest, newest=PackedEnds.part_of(manifest.newest, tables)))

    def size(self, table: TableId) -> tuple[int, int]:
        """Return the number of the table's rows, and the size of its part in bytes."""
        return self.manifest.files.size(table)

    @property
    def end_lsn(self) -> Lsn:
        """The end of the segment."""
        return self.manifest.end_lsn


class TableBacklog:
    """The position and the pending segments of a table or of its shadow copy.

    ``holds`` is False if no segment is needed, because the copy has not begun. ``known`` is False while the destination
    has not reported its watermark. Segments are added in WAL order. `pending` and `reached` are called for every
    table in each tick, so their cost does not grow with the number of pending segments.
    """

    __slots__ = ("_bytes", "_pending", "_rows", "holds", "known", "missing", "position", "table")

    def __init__(self, table: TableId, position: Lsn, *, holds: bool = True, known: bool = True) -> None:
        self.table = table
        self.position = position
        self.holds = holds
        self.known = known
        self.missing: Lsn | None = None
        """The end of a segment that the table needs but that is missing."""
        self._pending: deque[StagedSegment] = deque()
        self._rows = 0
        self._bytes = 0

    def __iter__(self) -> Iterator[StagedSegment]:
        return iter(self._pending)

    def __bool__(self) -> bool:
        return bool(self._pending)

    def keep(self, segments: Iterable[StagedSegment], newest: Lsn | None) -> None:
        """Keep the segments that are not applied yet, and compare them with the end ``newest`` in the ledger."""
        for segment in segments:
            self._append(segment)
        if self.holds and self.known:
            self.missing = missing_end(self.table, self.position, newest, (s.manifest for s in self._pending))

    def add(self, segment: StagedSegment) -> None:
        """Keep a newly staged segment, unless it is applied already."""
        if self.holds and self.known and self.missing is None and segment.end_lsn > self.position:
            reached = self._pending[-1].end_lsn if self._pending else self.position
            self.missing = missing_end(self.table, reached, None, [segment.manifest])
        self._append(segment)

    def _append(self, segment: StagedSegment) -> None:
        if not self.holds or segment.end_lsn <= self.position:
            return
        segment.holders += 1
        self._pending.append(segment)
        rows, size = segment.size(self.table)
        self._rows += rows
        self._bytes += size

    def advance(self, position: Lsn) -> list[StagedSegment]:
        """Move the position forward, and return the segments that this table no longer needs."""
        self.position = max(self.position, position)
        applied: list[StagedSegment] = []
        while self._pending and self._pending[0].end_lsn <= self.position:
            applied.append(self._release(self._pending.popleft()))
        return applied

    def release(self) -> list[StagedSegment]:
        """Give up every pending segment, and return them."""
        given_up = [self._release(segment) for segment in self._pending]
        self._pending.clear()
        return given_up

    def _release(self, segment: StagedSegment) -> StagedSegment:
        segment.holders -= 1
        rows, size = segment.size(self.table)
        self._rows -= rows
        self._bytes -= size
        return segment

    def pending(self) -> Pending:
        """Return what is left to apply."""
        if not self._pending:
            return NOTHING_PENDING
        return Pending(len(self._pending), self._rows, self._bytes, self._pending[0].manifest.first_commit_ts_us)

    def pending_below(self, lsn: Lsn) -> bool:
        """Return True if a pending segment may have a change that was committed below ``lsn``."""
        if self.position >= lsn or not self._pending:
            return False
        manifest = self._pending[0].manifest
        if manifest.end_lsn <= lsn:
            return True
        return any(
            (
                any(file.first_lsn < lsn for file in manifest.files_of(self.table)),
                any(r.commit_lsn < lsn for r in manifest.relations if r.schema.id == self.table),
                any(t.commit_lsn < lsn for t in manifest.truncates if self.table in t.tables),
            )
        )

    def next_batch(self, max_rows: int) -> tuple[Manifest, ...]:
        """Return the oldest pending segments, at least one if any is pending, as `Backlog.next_batch` says."""
        chosen: list[Manifest] = []
        rows = 0
        for segment in self._pending:
            rows += segment.size(self.table)[0]
            if chosen and rows > max_rows:
                break
            chosen.append(segment.manifest)
        return tuple(chosen)

    def first_end(self, lsn: Lsn) -> Lsn | None:
        """Return the end of the oldest pending segment that ends at or above ``lsn``, or None if there is none."""
        return next((s.end_lsn for s in self._pending if s.end_lsn >= lsn), None)

    def batch_until(self, lsn: Lsn) -> tuple[Manifest, ...]:
        """Return the pending segments that end at or below ``lsn``, oldest first."""
        return tuple(s.manifest for s in takewhile(lambda s: s.end_lsn <= lsn, self._pending))

    def batch_through(self, lsn: Lsn) -> tuple[Manifest, ...]:
        """Return the pending segments up to the first one that ends above ``lsn``, oldest first."""
        chosen: list[Manifest] = []
        for segment in self._pending:
            chosen.append(segment.manifest)
            if segment.end_lsn > lsn:
                break
        return tuple(chosen)

    def reached(self, staged: Lsn) -> Lsn:
        """Return the LSN below which nothing is left to apply, if everything below ``staged`` is staged."""
        if self._pending or not self.holds or not self.known:
            return self.position
        return max(self.position, staged)
