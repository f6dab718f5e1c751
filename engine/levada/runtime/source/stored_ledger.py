"""The segment log's ledger in the store, for the time when no staged manifest carries it."""

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
    """Stores the ledger of durable staging. Thread-safe.

    That of scratch staging is not stored, because PostgreSQL sends its changes again after a restart. A stored one
    counts on scratch staging too: the pipeline's staging was durable before, and the slot was acknowledged.
    """

    def __init__(self, store: PipelineStore, *, durable: bool) -> None:
        self._store = store
        self._durable = durable
        self._turn = threading.Lock()
        self._kept = Ledger()

    @property
    def exists(self) -> bool:
        """True if the store has a ledger: the slot may have been acknowledged for staged segments."""
        return self._store.get_fingerprint(_SUBJECT) is not None

    def load(self, manifests: Iterable[Manifest], tables: Collection[TableId]) -> Ledger:
        """Return the ledger of these tables, merged from the store and the manifests."""
        ledger = Ledger.loads(self._store.get_fingerprint(_SUBJECT))
        ledger.add_segments(manifests)
        self._kept = Ledger({table: end for table, end in ledger.ends.items() if table in tables})
        return Ledger(self._kept.ends)

    def save(self, ledger: Ledger) -> None:
        """Store the entries of the ledger that are newer than the stored ones.

        Two threads call it, each with its own ledger, and neither is always ahead of the other.
        """
        if not self._durable:
            return
        with self._turn:
            self._kept.add(ledger.ends)
            text = self._kept.dumps()
            if text != self._store.get_fingerprint(_SUBJECT):
                self._store.store_fingerprint(_SUBJECT, text)

    def forget(self) -> None:
        """Delete the stored ledger, once every table is copied again."""
        self._store.delete_fingerprint(_SUBJECT)
