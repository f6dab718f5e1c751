"""Writes of a store that reach its storage in one step."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from levada.stores.codecs import CONTROLS, SCHEMA
from levada.stores.storage import Change, Document, Key
from levada.stores.write_batch import WriteBatch
from levada.values import TableId

KEYS = [
    Key(kind, TableId(table), name) for kind, names in ((CONTROLS, [""]), (SCHEMA, ["", "1", "2"])) for table in (1, 2)
    for name in names
]  # fmt: skip
WRITES = st.lists(st.sets(st.sampled_from(KEYS)), max_size=8)


def append(number: int) -> Change:
    """Return a change that adds a number to a document, and so shows the order of changes."""

    def change(key: Key[object], document: Document | None) -> Document | None:
        return {"writes": [*(document or {"writes": []})["writes"], number]}

    return change


@given(WRITES)
def test_each_document_has_the_writes_that_select_it_in_their_order(writes: list[set[Key[object]]]) -> None:
    """Once each, also if a write selects a document by its name and by its kind and table."""
    batch = WriteBatch()
    for number, keys in enumerate(writes):
        batch.add(keys, append(number))
    assert bool(batch) == bool(writes)
    assert set(batch.keys) == set().union(*writes)
    for key in KEYS:
        whole = Key(key.kind, key.table)
        selecting = [number for number, keys in enumerate(writes) if key in keys or whole in keys]
        assert batch.change(key, None) == ({"writes": selecting} if selecting else None)
