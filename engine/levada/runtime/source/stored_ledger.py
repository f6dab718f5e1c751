"""The staged log's ledger as the store keeps it, for when no manifest has it."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable
from typing import Final

from levada.segments.ledger import Ledger
from levada.segments.manifest import Manifest
from levada.stores.interface import PipelineStore
from levada.values import TableId

_SUBJECT: Final = "staging"


class StoredLedger:
    """Keeps the ledger of durable staging; usable from any thread.

    What was on scratch staging is sent again after a restart, so its loss is none.
    """

    def __init__(self, store: PipelineStore, *, durable: bool) -> None:
        self._store = store
        self._durable = durable
        self._turn = threading.Lock()
        self._kept = Ledger()

    def load(self, manifests: Iterable[Manifest], tables: Collection[TableId]) -> Ledger:
        """Return the ledger as the store and the manifests have it, of these tables alone."""
        ledger = Ledger.loads(self._store.get_fingerprint(_SUBJECT) if self._durable else None)
        ledger.add_segments(manifests)
        self._kept = Ledger({table: end for table, end in ledger.ends.items() if table in tables})
        return Ledger(self._kept.ends)

    def keep(self, ledger: Ledger) -> None:
        """Make durable what of the ledger is newer than what is kept: two threads have one, neither is always ahead."""
        if not self._durable:
            return
        with self._turn:
            self._kept.add(ledger.ends)
            text = self._kept.dumps()
            if text != self._store.get_fingerprint(_SUBJECT):
                self._store.store_fingerprint(_SUBJECT, text)

    def forget(self) -> None:
        """Forget the ledger, when every table is copied again."""
        self._store.delete_fingerprint(_SUBJECT)
