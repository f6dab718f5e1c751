"""The record of a table's membership in the publication."""

from __future__ import annotations

from dataclasses import replace

from levada.postgres.membership import Membership, PublicationIdentity, PublicationState
from levada.runtime.tables.publication_gaps import find_gaps
from levada.stores import MemoryStorage, MemoryStore
from levada.stores.phases import Ready
from levada.stores.workers import table_worker
from levada.values import QualifiedTable, TableId

T = TableId(1)
IDENTITY = PublicationIdentity(5, "7", ("insert", "update", "delete", "truncate"), via_root=True)


def test_a_new_member_stands_for_the_former_one_from_its_first_look_on() -> None:
    """The source's record of it may go afterwards, as in a crash. Another member is a gap."""
    store = MemoryStore("shop", MemoryStorage())
    store.update_table_replication_states({T: Ready()})
    former, both, new = (Membership(IDENTITY, frozenset(m)) for m in (["a"], ["a", "b"], ["b"]))
    store.store_fingerprint(table_worker(T), former.to_text())
    state = PublicationState("p", IDENTITY, {T: QualifiedTable("public", "t")}, {T: both})
    assert find_gaps(store, state) == {}
    assert find_gaps(store, replace(state, members={T: new})) == {}
    assert find_gaps(store, replace(state, members={T: Membership(IDENTITY, frozenset(["c"]))})).keys() == {T}
