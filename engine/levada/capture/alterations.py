"""The announced alterations of tables in one transaction, which are judged when the transaction is complete."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from levada.pgoutput.changes import LogicalMessage
from levada.postgres.ddl import Announcement
from levada.values import Lsn, SnapshotId, TableId


@dataclass(frozen=True, slots=True)
class Alteration:
    """An announced statement of transaction ``xid``, with a message at LSN ``at``, committed at LSN ``committed``.

    ``truncated`` is True if the transaction has a TRUNCATE of the table, and ``emptied`` if one comes after this
    statement. It deletes the rows that the statement may have rewritten. The statement comes before the transaction's
    row or truncate message with the number ``ordinal``.
    """

    ddl: Announcement
    at: Lsn
    committed: Lsn
    xid: int
    ordinal: int
    truncated: bool = False
    emptied: bool = False


class Alterations:
    """The alterations of the transaction that is decoded. ``report`` is called with each of a complete transaction."""

    def __init__(self, report: Callable[[Alteration], None]) -> None:
        self._report = report
        self._transaction = SnapshotId(0)
        self._waiting: list[Alteration] = []
        self._truncated: set[TableId] = set()

    def add(self, ddl: Announcement, message: LogicalMessage, at: SnapshotId) -> None:
        """Add the alteration that a message announces in the transaction with the commit LSN ``at``."""
        self._enter(at)
        truncated = ddl.table_id in self._truncated
        self._waiting.append(Alteration(ddl, message.lsn, Lsn(at), message.xid, message.ordinal, truncated))

    def truncated(self, tables: Collection[TableId], at: SnapshotId) -> None:
        """Record a TRUNCATE of tables in the transaction with the commit LSN ``at``."""
        self._enter(at)
        self._truncated.update(tables)
        self._waiting = [
            replace(a, truncated=True, emptied=True) if a.ddl.table_id in tables else a for a in self._waiting
        ]

    def settle(self) -> None:
        """Report the alterations that wait, because their transaction is complete."""
        waiting, self._waiting = self._waiting, []
        self._truncated.clear()
        for alteration in waiting:
            self._report(alteration)

    def discard(self) -> None:
        """Forget a transaction that is not complete. The server sends it again."""
        self._waiting = []
        self._truncated.clear()

    def _enter(self, at: SnapshotId) -> None:
        if at != self._transaction:
            self.settle()
            self._transaction = at
