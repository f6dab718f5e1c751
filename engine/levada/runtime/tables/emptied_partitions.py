"""Partitions that have a new file: emptied by a TRUNCATE that is not in the stream, or written again.

The catalog does not show when the TRUNCATE was committed. But a partition that has no row at an LSN lost all rows that
it had before, whatever their place in the stream is. So another look at the source says whether a partition is empty,
and the rows of one that is leave the table at the LSN of that look. The table applies nothing meanwhile, so that it is
not ahead of it.

VACUUM FULL and CLUSTER keep the rows, and each row keeps the transaction that has inserted it. So a partition with a
row from before the last look at its former file was not truncated since.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from levada.postgres.storage import StorageSnapshot
from levada.schema.storage import TableStorage
from levada.values import Lsn, TableId


class EmptiedPartitions:
    """The partitions that are examined, and those that are explained. For the supervisor's thread."""

    def __init__(self) -> None:
        self._examined: dict[TableId, Mapping[TableId, int | None]] = {}
        self._explained: dict[TableId, dict[TableId, Lsn]] = {}
        self._horizons: dict[TableId, int] = {}
        self._wanted: dict[TableId, int | None] = {}

    def intact(self, table: TableId, horizon: int) -> None:
        """Record that a table has the files of its baseline in a snapshot with this horizon."""
        self._horizons[table] = horizon

    def examine(self, table: TableId, leaves: frozenset[TableId], horizon: int | None = None) -> None:
        """Ask whether leaves of a table are empty, or have rows from before the transaction ``horizon``.

        That is by default the horizon of the last snapshot of their files.
        """
        self._examined[table] = dict.fromkeys(leaves, self._horizons.get(table) if horizon is None else horizon)
        self._wanted |= self._examined[table]

    def take_wanted(self) -> Mapping[TableId, int | None]:
        """Return the leaves that the next look has to examine, each with its horizon."""
        wanted, self._wanted = self._wanted, {}
        return wanted

    @property
    def waiting(self) -> Mapping[TableId, int | None]:
        """The leaves about which the answer is not known yet."""
        return {leaf: horizon for leaves in self._examined.values() for leaf, horizon in leaves.items()}

    def is_examined(self, table: TableId) -> bool:
        """Return True if the answer for a table is not known yet."""
        return table in self._examined

    def answered(self, snapshot: StorageSnapshot) -> Mapping[TableId, frozenset[TableId]]:
        """Return the tables whose leaves a look has examined, with these leaves. They are no longer examined."""
        found = {t: frozenset(leaves) for t, leaves in self._examined.items() if leaves.keys() <= snapshot.examined}
        for table in found:
            del self._examined[table]
        return found

    def explained(self, table: TableId, leaves: frozenset[TableId], at: Lsn) -> None:
        """Record that a look at an LSN has explained the files of leaves."""
        self._explained.setdefault(table, {}).update(dict.fromkeys(leaves, at))

    def without_explained(self, table: TableId, now: TableStorage, known: TableStorage, lsn: Lsn) -> TableStorage:
        """Return the storage at an LSN with the known files of leaves that a later look has explained."""
        later = {leaf for leaf, at in self._explained.get(table, {}).items() if lsn < at}
        kept = {leaf: known.leaves[leaf] for leaf in later & now.leaves.keys() & known.leaves.keys()}
        return replace(now, leaves={**now.leaves, **kept}) if kept else now

    def forget(self, table: TableId) -> None:
        """Forget a table that is copied or no longer replicated."""
        self._examined.pop(table, None)
        self._explained.pop(table, None)
        self._horizons.pop(table, None)
