"""The record of the source in the store."""

from __future__ import annotations

from functools import partial

import pytest

from levada.errors import Transient
from levada.postgres.server import ServerIdentity
from levada.runtime.source.record import SourceRecord
from levada.stores import MemoryStore
from levada.values import Lsn

SERVER = ServerIdentity("1", 1, 1, "2026-01-01")


class Away(MemoryStore):
    """A store that does not answer while ``away``."""

    away = False

    def store_fingerprint(self, subject: str, fingerprint: str) -> None:
        if self.away:
            raise Transient("store_unavailable", "the store does not answer")
        super().store_fingerprint(subject, fingerprint)


def test_what_could_not_be_kept_is_kept_at_the_next_call() -> None:
    """A position that the store did not take is not taken for kept, nor is a server."""
    store = Away("shop")
    store.next_epoch()
    record = SourceRecord(store)
    for keep in (partial(record.save_position, Lsn(5), None), partial(record.verified, SERVER)):
        store.away = True
        with pytest.raises(Transient):
            keep()
        store.away = False
        keep()
    kept = SourceRecord(store)
    assert (kept.position, kept.identity) == (Lsn(5), SERVER)
