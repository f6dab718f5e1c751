"""The streamed TRUNCATEs of each table that no look at the catalog has shown yet, and what was streamed after them.

A look shows by which transaction a partition got its file. If that was within a savepoint, it is another number than
the stream has, and the catalog does not show whose it is. Then what follows in the stream is evidence. A table without
a row since the TRUNCATE is empty, whatever else emptied a partition. If no other transaction has written to the table
since, each row of it is from that transaction, so a partition that has one was not truncated again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from levada.postgres.storage import StorageSnapshot
from levada.segments.manifest import Manifest
from levada.values import Lsn, TableId

_NONE: Final = Lsn(0)


@dataclass(frozen=True, slots=True)
class _Last:
    """The last TRUNCATE of a table, by its transaction, and the commit of the last row in that one or since."""

    xid: int
    committed: Lsn
    rows_to: Lsn = _NONE


class StreamedTruncates:
    """The TRUNCATEs of staged segments. For the supervisor's thread."""

    def __init__(self) -> None:
        self._transactions: dict[TableId, frozenset[int]] = {}
        self._last: dict[TableId, _Last] = {}

    def add(self, manifest: Manifest) -> None:
        """Add the TRUNCATEs of a staged segment, and the rows that it has of tables that were truncated."""
        for truncate in manifest.truncates:
            for table in truncate.tables:
                self._transactions[table] = self.of(table) | {truncate.xid}
                self._last[table] = _Last(truncate.xid, truncate.commit_lsn)
        for table, last in self._last.items():
            rows_to = max((f.last_lsn for f in manifest.files_of(table)), default=_NONE)
            if rows_to >= last.committed:
                self._last[table] = _Last(last.xid, last.committed, rows_to)

    def of(self, table: TableId) -> frozenset[int]:
        """Return the transactions that have truncated a table, and that no look has shown."""
        return self._transactions.get(table, frozenset())

    def left_empty(self, table: TableId, snapshot: StorageSnapshot) -> bool:
        """Return True if a snapshot shows the last TRUNCATE, and no row was streamed in its transaction or since.

        Everything below the end of the snapshot was streamed.
        """
        last = self._shown_last(table, snapshot)
        return last is not None and not last.rows_to

    def wrote_alone(self, table: TableId, snapshot: StorageSnapshot) -> bool:
        """Return True if a snapshot shows the last TRUNCATE, and no other transaction has written rows since."""
        last = self._shown_last(table, snapshot)
        return last is not None and last.rows_to <= last.committed

    def shown(self, table: TableId, snapshot: StorageSnapshot) -> None:
        """Forget the TRUNCATEs that a snapshot shows. They explain nothing of what comes after it."""
        if later := frozenset(xid for xid in self.of(table) if not snapshot.shows(xid)):
            self._transactions[table] = later
        else:
            self.forget(table)

    def forget(self, table: TableId) -> None:
        """Forget all TRUNCATEs of a table."""
        self._transactions.pop(table, None)
        self._last.pop(table, None)

    def _shown_last(self, table: TableId, snapshot: StorageSnapshot) -> _Last | None:
        last = self._last.get(table)
        return last if last and last.committed < snapshot.end and snapshot.shows(last.xid) else None
