"""The staged segments that each table still needs, and those that no table needs any more. Pure.

A table's *position* is the LSN below which nothing is left to apply. Every staged change of the table with a lower
commit LSN is at the destination or in the table's copy. A shadow copy needs segments too. Methods with ``shadow`` refer
to the shadow copy of the table if it is True.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from levada.apply.table_backlog import NOTHING_PENDING, Pending, StagedSegment, TableBacklog
from levada.schema.partitions import Arrival, Move
from levada.segments.ledger import Ledger
from levada.segments.manifest import Manifest
from levada.values import Lsn, TableId

__all__ = ["Backlog", "Pending"]


class Backlog:
    """The pending segments of each table. Not thread-safe, because only the supervisor uses it.

    ``ledger`` has the ends of the segments that were staged earlier, also by earlier processes. Segments are added in
    WAL order. The cost of `pending` and `position`, which are called for every table in each tick, does not grow with
    the number of pending segments.
    """

    def __init__(self, ledger: Ledger | None = None) -> None:
        self._ledger = ledger or Ledger()
        self._segments: dict[str, StagedSegment] = {}
        self._by_table: dict[TableId, list[StagedSegment]] = {}
        self._unneeded: dict[str, StagedSegment] = {}
        self._bytes = 0
        self._tables: dict[TableId, TableBacklog] = {}
        self._shadows: dict[TableId, TableBacklog] = {}
        self._moves: dict[TableId, tuple[Move, ...]] = {}
        self._holds: dict[TableId, Lsn] = {}

    def track(self, table: TableId, position: Lsn | None, *, holds: bool = True, shadow: bool = False) -> None:
        """Start to keep segments for a table from ``position`` on, or set the position after a copy or a resync.

        With the position None, the destination has not reported its watermark yet. All staged segments are kept, and
        the position is 0 until then. If ``holds`` is False, the table needs no segment, because its copy has not begun.
        """
        state = TableBacklog(table, position or Lsn(0), holds=holds, known=position is not None)
        state.keep(self._by_table.get(table, ()), self._ledger.ends.get(table))
        former = self._of(shadow).get(table)
        self._of(shadow)[table] = state
        for segment in state:
            self._unneeded.pop(segment.manifest.name, None)
        if former is not None:
            self._drop(former.release())

    def missing(self, table: TableId, *, shadow: bool = False) -> Lsn | None:
        """Return the end of a segment that the table needs but that is missing, or None if none is missing."""
        state = self._of(shadow).get(table)
        return None if state is None else state.missing

    def position_known(self, table: TableId) -> bool:
        """Return True if the table's position is known."""
        return self._tables[table].known

    def holds(self, table: TableId, *, shadow: bool = False) -> bool:
        """Return True if segments are kept for the table. For one whose copy has not begun, none are."""
        state = self._of(shadow).get(table)
        return state is not None and state.holds

    def forget(self, table: TableId, *, shadow: bool = False) -> None:
        """Stop keeping segments for the table. A table that is not tracked is no error."""
        state = self._of(shadow).pop(table, None)
        if not shadow:
            self._moves.pop(table, None)
            self._holds.pop(table, None)
        if state is not None:
            self._drop(state.release())

    def promote_shadow(self, table: TableId) -> None:
        """Give the table the position and the pending segments of its shadow copy, after the swap."""
        former = self._tables.get(table)
        self._tables[table] = self._shadows.pop(table)
        if former is not None:
            self._drop(former.release())

    def add_segment(self, manifest: Manifest) -> None:
        """Add a staged segment."""
        tables = manifest.tables
        segment = StagedSegment.of(manifest, tables)
        self._segments[manifest.name] = segment
        self._bytes += segment.manifest.total_bytes
        self._ledger.add_segments([manifest])
        for table in tables:
            self._by_table.setdefault(table, []).append(segment)
            for state in (self._tables.get(table), self._shadows.get(table)):
                if state is not None:
                    state.add(segment)
        if not segment.holders:
            self._unneeded[manifest.name] = segment

    @property
    def ledger(self) -> Ledger:
        """The ends of each table's newest segments."""
        return self._ledger

    @property
    def end(self) -> Lsn:
        """The end of the newest segment that is kept, or 0/0 if there is none."""
        newest = next(reversed(self._segments.values()), None)
        return Lsn(0) if newest is None else newest.end_lsn

    def next_batch(self, table: TableId, max_rows: int, *, shadow: bool = False) -> tuple[Manifest, ...]:
        """Return the table's oldest pending segments.

        There is at least one if any is pending. More are added while the sum of their rows is at most ``max_rows``.
        """
        return self._of(shadow)[table].next_batch(max_rows)

    def next_common_batch(
        self, tables: Iterable[TableId], max_rows: int, floor: Lsn | None = None
    ) -> dict[TableId, tuple[Manifest, ...]]:
        """Return the oldest pending segments of several tables, all of which end at or below one LSN.

        The batch has every pending change of every table up to that LSN. It is the lowest end of a `next_batch` that
        leaves segments of its table, but not below ``floor``, the highest position of the tables. So the tables are at
        one LSN after the batch, also if one of them was copied later than the others. Then the batch of the others may
        have more than ``max_rows`` rows.
        """
        states = {t: found for t in tables if (found := self._tables[t])}
        chosen = {t: state.next_batch(max_rows) for t, state in states.items()}
        ends = [batch[-1].end_lsn for t, batch in chosen.items() if len(batch) < states[t].pending().segments]
        if not ends:
            return chosen
        until = min(ends)
        if floor is not None and until < floor:
            until = min((end for s in states.values() if (end := s.first_end(floor)) is not None), default=floor)
        batches = {t: state.batch_until(until) for t, state in states.items()}
        return {t: batch for t, batch in batches.items() if batch}

    def applied(self, table: TableId, position: Lsn, *, shadow: bool = False) -> None:
        """Move the table's position forward. Do nothing for a table that is not tracked any more."""
        state = self._of(shadow).get(table)
        if state is not None:
            self._drop(state.advance(position))

    def set_moves(self, table: TableId, moves: Sequence[Move]) -> None:
        """Set the moves that the table has left to apply, in WAL order. A shadow copy has none."""
        self._moves.pop(table, None)
        if moves:
            self._moves[table] = tuple(moves)

    def hold(self, table: TableId, lsn: Lsn | None) -> None:
        """Let the table apply no change with a commit LSN of at least ``lsn``, or any if it is None."""
        self._holds.pop(table, None)
        if lsn is not None:
            self._holds[table] = lsn

    def held_at(self, table: TableId) -> Lsn | None:
        """Return the LSN at which the table is held, None if it is not."""
        return self._holds.get(table)

    def move(self, table: TableId) -> Move | None:
        """Return the next move of the table, None without one."""
        return next(iter(self._moves.get(table, ())), None)

    def moves(self, table: TableId) -> tuple[Move, ...]:
        """Return the moves that the table has left to apply, in order."""
        return self._moves.get(table, ())

    @property
    def arriving(self) -> Mapping[TableId, frozenset[Arrival]]:
        """The arrivals of the tables that have some left to apply."""
        found = {t: frozenset(m for m in moves if isinstance(m, Arrival)) for t, moves in self._moves.items()}
        return {table: arrivals for table, arrivals in found.items() if arrivals}

    def position(self, table: TableId, staged: Lsn, *, shadow: bool = False) -> Lsn:
        """Return the table's position. ``staged`` is the LSN below which all changes are staged.

        Without pending segments the position is ``staged``, as there is nothing to apply below it. It is at most that
        of the next move.
        """
        reached = self._of(shadow)[table].reached(staged)
        move = None if shadow else self.move(table)
        return reached if move is None else min(reached, move.at)

    def applied_lsn(self, table: TableId) -> Lsn:
        """Return the LSN below which the destination holds every change of the table, 0 while that is not known."""
        return self._tables[table].position

    def pending(self, table: TableId, *, shadow: bool = False) -> Pending:
        """Return the changes that the table has left to apply. A move counts as a segment without rows."""
        state = self._of(shadow).get(table)
        if state is None:
            return NOTHING_PENDING
        pending = state.pending()
        more = 0 if shadow else len(self._moves.get(table, ()))
        return replace(pending, segments=pending.segments + more) if more else pending

    def pending_below(self, table: TableId, lsn: Lsn) -> bool:
        """Return True if the table may have a change left to apply that was committed below ``lsn``."""
        move = self.move(table)
        return (move is not None and move.at < lsn) or self._tables[table].pending_below(lsn)

    def before_move(self, table: TableId, move: Move) -> bool:
        """Return True if the table may have a staged change left to apply from before the move's transaction."""
        return self._tables[table].pending_below(move.at)

    def batch_through(self, table: TableId, lsn: Lsn) -> tuple[Manifest, ...]:
        """Return the pending segments that may have changes of a transaction that is committed at an LSN, or before."""
        return self._tables[table].batch_through(lsn)

    def min_applied_lsn(self, staged: Lsn) -> Lsn:
        """Return the lowest position of all tables and shadow copies that hold segments.

        ``staged`` is the LSN below which all changes are staged.
        """
        states = (s for by_table in (self._tables, self._shadows) for s in by_table.values())
        return min((s.reached(staged) for s in states if s.holds), default=staged)

    def pop_unneeded(self) -> tuple[Manifest, ...]:
        """Remove and return the segments that no table needs, oldest first."""
        gone = sorted((s.manifest for s in self._unneeded.values()), key=lambda m: m.end_lsn)
        for segment in self._unneeded.values():
            del self._segments[segment.manifest.name]
            self._bytes -= segment.manifest.total_bytes
            for table in segment.manifest.tables:
                self._remove(table, segment)
        self._unneeded.clear()
        return tuple(gone)

    @property
    def staged_bytes(self) -> int:
        """The size in bytes of the kept segments."""
        return self._bytes

    @property
    def segments(self) -> int:
        """The number of kept segments."""
        return len(self._segments)

    def _remove(self, table: TableId, segment: StagedSegment) -> None:
        kept = self._by_table[table]
        # It is the oldest one, unless a table that is far behind keeps older ones.
        del kept[0 if kept[0] is segment else bisect_left(kept, segment.end_lsn, key=lambda s: s.end_lsn)]
        if not kept:
            del self._by_table[table]

    def _of(self, shadow: bool) -> dict[TableId, TableBacklog]:
        return self._shadows if shadow else self._tables

    def _drop(self, segments: Iterable[StagedSegment]) -> None:
        for segment in segments:
            if not segment.holders:
                self._unneeded[segment.manifest.name] = segment
