"""Documents of the store that were changed by hand, damaged, or written by another release."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.stores.test_behaviours import ORDERS

from levada.errors import NeedsOperator
from levada.stores import CachedStore, Document, Key, MemoryStorage, MemoryStore
from levada.stores.codecs import CONTROLS, FINGERPRINT, ORDER, OWNER, PHASES, PROGRESS, SCHEMA, action_key
from levada.values import Lsn

READS: list[tuple[Key[Any], Callable[[CachedStore], object]]] = [
    (Key(PHASES, ORDERS), CachedStore.load_table_replication_states),
    (Key(SCHEMA, ORDERS, "0/0"), CachedStore.load_table_schemas),
    (Key(PROGRESS, None, "capture"), lambda s: s.get_replication_progress("capture")),
    (Key(PROGRESS, None, "capture"), lambda s: s.upsert_replication_progress("capture", Lsn(7))),
    (Key(CONTROLS, ORDERS), CachedStore.load_table_controls),
    (Key(FINGERPRINT, ORDERS), CachedStore.load_fingerprints),
    (Key(ORDER, ORDERS), lambda s: s.get_copy_order(ORDERS)),
    (action_key(ORDERS), CachedStore.take_table_actions),
    (Key(OWNER), CachedStore.get_owner_record),
    (Key(OWNER), CachedStore.next_epoch),
]


@pytest.mark.parametrize(
    "document",
    [{}, [], "x", {"history": []}, {"history": [{"phase": "Resting"}]}, {"lsn": 7}, {"token": "t", "epoch": 1}],
)
@pytest.mark.parametrize(("key", "read"), READS)
def test_a_document_that_cannot_be_read_is_named(
    key: Key[Any], read: Callable[[CachedStore], object], document: Document
) -> None:
    """The error has a code, the document and what to do. No value is read half."""
    storage = MemoryStorage()
    storage.put(None, {key: document})
    with pytest.raises(NeedsOperator) as damaged:
        read(MemoryStore("shop", storage))
    assert damaged.value.code == "store_damaged"
    assert damaged.value.hint
    assert damaged.value.message.startswith(f"pipeline shop: the stored {key.kind.name}")
    assert key.table is None or f"of table {int(ORDERS)}" in damaged.value.message
