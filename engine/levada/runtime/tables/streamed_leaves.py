"""Partitions whose rows are in the stream of a table, and which no look at the catalog has shown yet.

Without the event trigger, a partition may be created or attached, written to, and detached or dropped again between two
looks. The catalog has no trace of it then. But the stream describes each partition before its first row, so the next
look is expected to show it. What is not known yet is in the store before the rows are staged.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from levada.postgres.storage import StorageSnapshot
from levada.runtime.tables.catalog_reports import LeavesStreamed
from levada.schema.storage import TableStorage
from levada.stores.interface import PipelineStore
from levada.values import Lsn, TableId


@dataclass(frozen=True, slots=True)
class _Streamed:
    """The transaction in which a leaf was streamed last."""

    at: Lsn
    xid: int


class StreamedLeaves:
    """Keeps what was streamed of leaves that are not known yet. For the supervisor's thread."""

    def __init__(self, store: PipelineStore) -> None:
        self._store = store
        self._loaded: dict[TableId, Mapping[TableId, _Streamed]] = {}

    def add(self, report: LeavesStreamed, known: Collection[TableId]) -> None:
        """Keep the leaves of a report that are not ``known``."""
        if new := report.leaves.difference(known):
            found = _Streamed(report.at, report.xid)
            self._keep(report.root, {**self._of(report.root), **dict.fromkeys(new, found)})

    def copied(self, table: TableId, lsn: Lsn) -> None:
        """Forget the leaves that were streamed below the LSN of a copy, which has their rows or lacks them."""
        self._keep(table, {leaf: s for leaf, s in self._of(table).items() if s.at >= lsn})

    def forget(self, table: TableId) -> None:
        """Forget all leaves of a table."""
        self._keep(table, {})

    def lost(self, table: TableId, known: Collection[TableId], snapshot: StorageSnapshot) -> frozenset[TableId]:
        """Return the leaves that a snapshot should show, and that were not ``known`` before."""
        shown = snapshot.tables[table].leaves
        return frozenset(self._shown(table, snapshot) - set(known) - shown.keys())

    def with_rows(self, now: TableStorage, table: TableId, known: Collection[TableId]) -> TableStorage:
        """Return the storage in which new leaves count as attached with rows if they may have lost streamed ones.

        Such a leaf has another file than at its creation, or had rows before it was attached without any. The file that
        a table is created with has the number of its OID (heap_create in PostgreSQL).
        """
        doubtful = {
            leaf: replace(now.leaves[leaf], empty=False, born=False)
            for leaf in self._of(table).keys() & now.leaves.keys() - set(known)
            if not now.leaves[leaf].born or now.leaves[leaf].filenode != leaf
        }
        return replace(now, leaves={**now.leaves, **doubtful}) if doubtful else now

    def compared(self, table: TableId, snapshot: StorageSnapshot) -> None:
        """Forget the leaves that a snapshot has shown, once its storage is the table's baseline."""
        shown = self._shown(table, snapshot)
        self._keep(table, {leaf: s for leaf, s in self._of(table).items() if leaf not in shown})

    def _shown(self, table: TableId, snapshot: StorageSnapshot) -> set[TableId]:
        return {leaf for leaf, s in self._of(table).items() if s.at < snapshot.end and snapshot.shows(s.xid)}

    def _of(self, table: TableId) -> Mapping[TableId, _Streamed]:
        if table not in self._loaded:
            text = self._store.get_fingerprint(_subject(table))
            data = {} if text is None else json.loads(text)
            self._loaded[table] = {TableId(int(k)): _Streamed(Lsn.parse(at), xid) for k, (at, xid) in data.items()}
        return self._loaded[table]

    def _keep(self, table: TableId, leaves: Mapping[TableId, _Streamed]) -> None:
        if leaves == self._of(table):
            return
        self._loaded[table] = leaves
        if leaves:
            data = {str(int(leaf)): [str(s.at), s.xid] for leaf, s in leaves.items()}
            self._store.store_fingerprint(_subject(table), json.dumps(data))
        else:
            self._store.delete_fingerprint(_subject(table))


def _subject(table: TableId) -> str:
    return f"streamed_leaves_{int(table)}"
