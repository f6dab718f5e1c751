"""The record of the source in the store."""

from __future__ import annotations

from dataclasses import replace

from levada.postgres.server import ServerIdentity
from levada.runtime.source.record import SourceRecord
from levada.stores.memory import MemoryStore
from levada.values import Lsn

FIRST = ServerIdentity("7301", 1, 5, "monday")


def test_former_sources_are_kept() -> None:
    """Tables at the destination are marked with their source, so earlier ones are remembered."""
    store = MemoryStore("p")
    store.next_epoch()
    record = SourceRecord(store)
    record.begin(FIRST, Lsn(1))
    record.begin(replace(FIRST, timeline=2, started_at="tuesday"), Lsn(2))
    assert SourceRecord(store).former == frozenset()
    record.begin(replace(FIRST, system_id="7302"), Lsn(3))
    record.begin(replace(FIRST, database_oid=6), Lsn(4))
    assert SourceRecord(store).former == {"7301/5", "7302/5"}
    record.begin(FIRST, Lsn(5))
    assert SourceRecord(store).former == {"7301/6", "7302/5"}
