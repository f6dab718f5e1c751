"""The record of the source in the store."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from levada.postgres.connection import PostgresConnection
from levada.postgres.identity import SourceIdentity
from levada.postgres.server import ServerIdentity
from levada.runtime.source.record import SourceRecord, former_sources, verified_source
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
    assert SourceRecord(store).state.former == frozenset()
    record.begin(replace(FIRST, system_id="7302"), Lsn(3))
    record.begin(replace(FIRST, database_oid=6), Lsn(4))
    assert SourceRecord(store).state.former == {"7301/5", "7302/5"}
    record.begin(FIRST, Lsn(5))
    assert SourceRecord(store).state.former == {"7301/6", "7302/5"}


def test_a_destination_sees_the_verified_source() -> None:
    """The identity follows the record without a call of the engine, and needs no connection to the source."""
    store = MemoryStore("p")
    store.next_epoch()
    nowhere = PostgresConnection("127.0.0.1", 1, "nowhere")
    source = SourceIdentity(nowhere, partial(verified_source, store), partial(former_sources, store))
    assert not source.is_former("7301/5")
    record = SourceRecord(store)
    record.begin(FIRST, Lsn(1))
    assert str(source) == "7301/5"
    record.begin(replace(FIRST, system_id="7302"), Lsn(2))
    assert str(source) == "7302/5"
    assert source.is_former("7301/5")
