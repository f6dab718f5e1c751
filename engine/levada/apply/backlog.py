"""The staged segments that each table still needs, and those that no table needs any more. Pure.

A table's *position* is the LSN below which nothing is left to apply. Every staged change of the table with a lower
commit LSN is at the destination or in the table's copy. A shadow copy needs segments too. Methods with ``shadow`` refer
to the shadow copy of the table if it is True.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from levada.segments.ledger import Ledger, missing_end
from levada.segments.manifest import Manifest
from levada.values import Lsn, TableId


@dataclass(slots=True)
class _TablePosition:
    position: Lsn
    pending: list[Manifest] = field(default_factory=list)
    holds: bool = True
    known: bool = True
    missing: Lsn | None = None

    def add(self, table: TableId, manifest: Manifest) -> None:
        """Keep a staged segment, unless it is applied already."""
        if not self.holds or manifest.end_lsn <= self.position:
            return
        if self.known and self.missing is None:
            reached = self.pending[-1].end_lsn if self.pending else self.position
            self.missing = missing_end(table, reached, None, [manifest])
        self.pending.append(manifest)


@dataclass(frozen=True, slots=True)
class Pending:
    """The changes that a table has left to apply.

    ``rows`` is an upper bound. ``oldest_commit_ts_us`` is in microseconds since 1970 UTC.
    """

    segments: int
    rows: int
    bytes: int
    oldest_commit_ts_us: int | None


class Backlog:
    """The pending segments of each table. Not thread-safe, because only the supervisor uses it.

    ``ledger`` has the ends of the segments that were staged earlier, also by earlier processes.
    """

    def __init__(self, ledger: Ledger | None = None) -> None:
        self._ledger = ledger or Ledger()
        self._manifests: dict[str, Manifest] = {}
        self._tables: dict[TableId, _TablePosition] = {}
        self._shadows: dict[TableId, _TablePosition] = {}

    def track(self, table: TableId, position: Lsn | None, *, holds: bool = True, shadow: bool = False) -> None:
        """Start to keep segments for a table from ``position`` on, or set the position after a copy or a resync.

        With the position None, the destination has not reported its watermark yet. All staged segments are kept, and
        the position is 0 until then. If ``holds`` is False, the table needs no segment, because its copy has not begun.
        """
        start = position or Lsn(0)
        pending = [m for m in self._in_order() if holds and m.end_lsn > start and table in m.tables]
        newest = self._ledger.ends.get(table)
        missing = missing_end(table, position, newest, pending) if holds and position is not None else None
        self._of(shadow)[table] = _TablePosition(start, pending, holds, position is not None, missing)

    def missing(self, table: TableId) -> Lsn | None:
        """Return the end of a segment that the table needs but that is missing, or None if none is missing."""
        state = self._tables.get(table)
        return None if state is None else state.missing

    def position_known(self, table: TableId) -> bool:
        """Return True if the table's position is known."""
        return self._tables[table].known

    def forget(self, table: TableId, *, shadow: bool = False) -> None:
        """Stop keeping segments for the table. A table that is not tracked is no error."""
        self._of(shadow).pop(table, None)

    def promote_shadow(self, table: TableId) -> None:
        """Give the table the position and the pending segments of its shadow copy, after the swap."""
        self._tables[table] = self._shadows.pop(table)

    def add_segment(self, manifest: Manifest) -> None:
        """Add a staged segment."""
        self._manifests[manifest.name] = manifest
        self._ledger.add_segments([manifest])
        for table in manifest.tables:
            for state in (self._tables.get(table), self._shadows.get(table)):
                if state is not None:
                    state.add(table, manifest)

    @property
    def ledger(self) -> Ledger:
        """The ends of each table's newest segments."""
        return self._ledger

    @property
    def end(self) -> Lsn:
        """The end of the newest segment that is kept, or 0/0 if there is none."""
        return max((m.end_lsn for m in self._manifests.values()), default=Lsn(0))

    def next_batch(self, table: TableId, max_rows: int, *, shadow: bool = False) -> tuple[Manifest, ...]:
        """Return the table's oldest pending segments.

        There is at least one if any is pending. More are added while the sum of their rows is at most ``max_rows``.
        """
        chosen: list[Manifest] = []
        rows = 0
        for manifest in self._of(shadow)[table].pending:
            mine = sum(f.rows for f in manifest.files if f.table == table)
            if chosen and rows + mine > max_rows:
                break
            chosen.append(manifest)
            rows += mine
        return tuple(chosen)

    def next_common_batch(self, tables: Iterable[TableId], max_rows: int) -> dict[TableId, tuple[Manifest, ...]]:
        """Return the oldest pending segments of several tables, all of which end at or below one LSN.

        The batch has every pending change of every table up to the end of its last segment. So it ends where the first
        table's `next_batch` ends, and tables whose first segment ends later are not in the result.
        """
        batches = {t: batch for t in tables if (batch := self.next_batch(t, max_rows))}
        until = min((batch[-1].end_lsn for batch in batches.values()), default=Lsn(0))
        within = {t: tuple(m for m in batch if m.end_lsn <= until) for t, batch in batches.items()}
        return {t: batch for t, batch in within.items() if batch}

    def applied(self, table: TableId, position: Lsn, *, shadow: bool = False) -> None:
        """Move the table's position forward. Do nothing for a table that is not tracked any more."""
        state = self._of(shadow).get(table)
        if state is None or position <= state.position:
            return
        state.position = position
        state.pending = [m for m in state.pending if m.end_lsn > position]

    def position(self, table: TableId, staged: Lsn, *, shadow: bool = False) -> Lsn:
        """Return the table's position. ``staged`` is the LSN below which all changes are staged.

        Without pending segments the position is ``staged``, as there is nothing to apply below it.
        """
        state = self._of(shadow)[table]
        if state.pending or not state.holds or not state.known:
            return state.position
        return max(state.position, staged)

    def applied_lsn(self, table: TableId) -> Lsn:
        """Return the LSN below which the destination holds every change of the table, 0 while that is not known."""
        return self._tables[table].position

    def pending(self, table: TableId, *, shadow: bool = False) -> Pending:
        """Return the changes that the table has left to apply."""
        state = self._of(shadow).get(table)
        if state is None:
            return Pending(0, 0, 0, None)
        files = [f for m in state.pending for f in m.files if f.table == table]
        first = state.pending[0].first_commit_ts_us if state.pending else None
        return Pending(len(state.pending), sum(f.rows for f in files), sum(f.bytes for f in files), first)

    def min_applied_lsn(self, staged: Lsn) -> Lsn:
        """Return the lowest position of all tables and shadow copies that hold segments.

        ``staged`` is the LSN below which all changes are staged.
        """
        positions = (
            self.position(t, staged, shadow=b) for b in (False, True) for t, s in self._of(b).items() if s.holds
        )
        return min(positions, default=staged)

    def pop_unneeded(self) -> tuple[Manifest, ...]:
        """Remove and return the segments that no table needs, oldest first."""
        needed = {m.name for b in (False, True) for s in self._of(b).values() for m in s.pending}
        gone = tuple(m for m in self._in_order() if m.name not in needed)
        for manifest in gone:
            del self._manifests[manifest.name]
        return gone

    @property
    def staged_bytes(self) -> int:
        """The size in bytes of the kept segments."""
        return sum(m.total_bytes for m in self._manifests.values())

    @property
    def segments(self) -> int:
        """The number of kept segments."""
        return len(self._manifests)

    def _of(self, shadow: bool) -> dict[TableId, _TablePosition]:
        return self._shadows if shadow else self._tables

    def _in_order(self) -> Iterable[Manifest]:
        return sorted(self._manifests.values(), key=lambda m: m.end_lsn)
