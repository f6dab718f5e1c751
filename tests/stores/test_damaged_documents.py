"""Documents of the store that were changed by hand, damaged, or written by another release."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.rigs.database import Database

from levada.errors import NeedsOperator
from levada.stores import CachedStore, Document, Key, MemoryStorage, MemoryStore, PostgresStore
from levada.stores.codecs import (
    CONTROLS,
    CUT,
    DESTINATION,
    FINGERPRINT,
    ORDER,
    OWNER,
    PHASES,
    PROGRESS,
    SCHEMA,
    action_key,
)
from levada.stores.readiness import check_postgres_store
from levada.stores.slot_owners import slot_owners
from levada.stores.storage import parsed_document
from levada.testing.store_samples import ORDERS
from levada.values import Lsn

READS: list[tuple[Key[Any], Callable[[CachedStore], object]]] = [
    (Key(PHASES, ORDERS), CachedStore.load_table_replication_states),
    (Key(SCHEMA, ORDERS, "0/0"), CachedStore.load_table_schemas),
    (Key(PROGRESS, None, "capture"), lambda s: s.get_replication_progress("capture")),
    (Key(PROGRESS, None, "capture"), lambda s: s.upsert_replication_progress("capture", Lsn(7))),
    (Key(CONTROLS, ORDERS), CachedStore.load_table_controls),
    (Key(FINGERPRINT, ORDERS), CachedStore.load_fingerprints),
    (Key(CUT, None, "noon"), CachedStore.load_cuts),
    (Key(ORDER, ORDERS), lambda s: s.get_copy_order(ORDERS)),
    (Key(DESTINATION, ORDERS), lambda s: s.get_destination_table_metadata(ORDERS)),
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


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000])
def test_text_that_is_no_json_is_named(text: str) -> None:
    """A ConfigMap may hold any text."""
    with pytest.raises(NeedsOperator, match=r"phases\.7 in ConfigMap data/shop-state-7 is not") as damaged:
        parsed_document(text, "phases.7 in ConfigMap data/shop-state-7")
    assert damaged.value.code == "store_damaged"


def test_checks_name_a_damaged_document(db: Database) -> None:
    """The check before a start, and the search for other owners of a slot, read the tables directly."""
    store = PostgresStore(db.connection, "shop")
    store.next_epoch()
    store.close()
    insert = "INSERT INTO levada.documents (pipeline, kind, table_id, name, content) VALUES ('shop', %s, %s, '', '[1]')"
    with db.connect() as connection:
        connection.execute(insert, [PHASES.name, int(ORDERS)])
        connection.execute(insert, [OWNER.name, 0])
        with pytest.raises(NeedsOperator, match="schema levada") as of_owners:
            slot_owners(connection, "levada_shop")
    with pytest.raises(NeedsOperator, match="schema levada") as of_check:
        check_postgres_store(db.connection, "shop", "levada")
    assert of_owners.value.code == of_check.value.code == "store_damaged"
