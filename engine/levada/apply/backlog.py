"""Which staged segments each table still needs, and which segments nobody needs any more. Pure bookkeeping.

A table's *position* is the LSN up to which nothing is left to apply: every staged change of it with a commit LSN below
is at the destination, or is in the table's copy. A new copy that is made beside a table needs segments of its own: the
methods that take ``beside`` then speak of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from levada.segments.ledger import Ledger, missing_end
from levada.segments.manifest import Manifest
from levada.values import Lsn, TableId


@dataclass(slots=True)
class _Holder:
    position: Lsn
    pending: list[Manifest] = field(default_factory=list)
    holds: bool = True
    known: bool = True
    missing: Lsn | None = None

    def add(self, table: TableId, manifest: Manifest) -> None:
        """Keep a segment that landed, unless it is applied already."""
        if not self.holds or manifest.end_lsn <= self.position:
            return
        if self.known and self.missing is None:
            reached = self.pending[-1].end_lsn if self.pending else self.position
            self.missing = missing_end(table, reached, None, [manifest])
        self.pending.append(manifest)


@dataclass(frozen=True, slots=True)
class Pending:
    """What a table has left to apply: ``rows`` is an upper bound, ``oldest_commit_ts_us`` in µs since 1970 UTC."""

    segments: int
    rows: int
    bytes: int
    oldest_commit_ts_us: int | None


class Backlog:
    """The staged segments, seen from each table. Not thread-safe: the supervisor alone holds it.

    ``ledger`` tells which segments there were before those that land.
    """

    def __init__(self, ledger: Ledger | None = None) -> None:
        self._ledger = ledger or Ledger()
        self._manifests: dict[str, Manifest] = {}
        self._tables: dict[TableId, _Holder] = {}
        self._beside: dict[TableId, _Holder] = {}

    def track(self, table: TableId, position: Lsn | None, *, holds: bool = True, beside: bool = False) -> None:
        """Begin to keep segments for a table from ``position`` on, or move it there (a copy, a resync).

        None: the destination has not told yet, all that is staged is kept, and the position is 0 meanwhile. Without
        ``holds`` the table needs nothing that is staged before its copy begins: it follows what lands.
        """
        start = position or Lsn(0)
        pending = [m for m in self._in_order() if holds and m.end_lsn > start and table in m.tables]
        newest = self._ledger.ends.get(table)
        missing = missing_end(table, position, newest, pending) if holds and position is not None else None
        self._of(beside)[table] = _Holder(start, pending, holds, position is not None, missing)

    def missing(self, table: TableId) -> Lsn | None:
        """Return the end of a staged segment that the table needs and that is not there, None if it has all of them."""
        state = self._tables.get(table)
        return None if state is None else state.missing

    def knows(self, table: TableId) -> bool:
        """Tell whether the table's position is known."""
        return self._tables[table].known

    def forget(self, table: TableId, *, beside: bool = False) -> None:
        """Keep nothing for the table any more; not an error if it was not tracked."""
        self._of(beside).pop(table, None)

    def take_place(self, table: TableId) -> None:
        """Let the table be where its new copy is, which is at its place from now on."""
        self._tables[table] = self._beside.pop(table)

    def land(self, manifest: Manifest) -> None:
        """Add a segment that was staged."""
        self._manifests[manifest.name] = manifest
        self._ledger.add_segments([manifest])
        for table in manifest.tables:
            for state in (self._tables.get(table), self._beside.get(table)):
                if state is not None:
                    state.add(table, manifest)

    @property
    def ledger(self) -> Ledger:
        """The ends of the tables' newest segments."""
        return self._ledger

    @property
    def end(self) -> Lsn:
        """The end of the newest segment that is kept, 0/0 without one."""
        return max((m.end_lsn for m in self._manifests.values()), default=Lsn(0))

    def next_batch(self, table: TableId, max_rows: int, *, beside: bool = False) -> tuple[Manifest, ...]:
        """Return the table's oldest pending segments, at least one, further ones while ``max_rows`` holds."""
        chosen: list[Manifest] = []
        rows = 0
        for manifest in self._of(beside)[table].pending:
            mine = sum(f.rows for f in manifest.files if f.table == table)
            if chosen and rows + mine > max_rows:
                break
            chosen.append(manifest)
            rows += mine
        return tuple(chosen)

    def applied(self, table: TableId, position: Lsn, *, beside: bool = False) -> None:
        """Move the table's position forwards; one that was forgotten meanwhile stays so."""
        state = self._of(beside).get(table)
        if state is None or position <= state.position:
            return
        state.position = position
        state.pending = [m for m in state.pending if m.end_lsn > position]

    def position(self, table: TableId, staged: Lsn, *, beside: bool = False) -> Lsn:
        """Return the table's position, given that everything up to ``staged`` is staged."""
        state = self._of(beside)[table]
        if state.pending or not state.holds or not state.known:
            return state.position
        return max(state.position, staged)

    def applied_lsn(self, table: TableId) -> Lsn:
        """Return the LSN below which the destination holds every change of the table, 0 while that is not known."""
        return self._tables[table].position

    def pending(self, table: TableId, *, beside: bool = False) -> Pending:
        """Return what the table has left to apply."""
        state = self._of(beside).get(table)
        if state is None:
            return Pending(0, 0, 0, None)
        files = [f for m in state.pending for f in m.files if f.table == table]
        first = state.pending[0].first_commit_ts_us if state.pending else None
        return Pending(len(state.pending), sum(f.rows for f in files), sum(f.bytes for f in files), first)

    def everywhere(self, staged: Lsn) -> Lsn:
        """Return the LSN up to which every table, and new copy, that holds segments has nothing left.

        Everything up to ``staged`` is staged.
        """
        positions = (
            self.position(t, staged, beside=b) for b in (False, True) for t, s in self._of(b).items() if s.holds
        )
        return min(positions, default=staged)

    def take_removable(self) -> tuple[Manifest, ...]:
        """Return the segments that no table needs, oldest first, and forget them."""
        needed = {m.name for b in (False, True) for s in self._of(b).values() for m in s.pending}
        gone = tuple(m for m in self._in_order() if m.name not in needed)
        for manifest in gone:
            del self._manifests[manifest.name]
        return gone

    @property
    def staged_bytes(self) -> int:
        """Bytes of the segments that are waiting for apply."""
        return sum(m.total_bytes for m in self._manifests.values())

    @property
    def segments(self) -> int:
        """How many segments are waiting for apply."""
        return len(self._manifests)

    def _of(self, beside: bool) -> dict[TableId, _Holder]:
        return self._beside if beside else self._tables

    def _in_order(self) -> Iterable[Manifest]:
        return sorted(self._manifests.values(), key=lambda m: m.end_lsn)
