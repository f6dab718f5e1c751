"""The promises of every kind of storage, below the store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.rigs.storages import OpenStorage

from levada.errors import NeedsOperator, StaleEpoch
from levada.stores import Document, DocumentKind, Key, Storage
from levada.values import TableId

NUMBER: DocumentKind[int] = DocumentKind(
    "number", lambda n: {"n": n}, lambda document: int(document["n"]), pipeline_wide=True
)
OTHER: DocumentKind[int] = DocumentKind("other", NUMBER.encode, NUMBER.decode)
ONE, TWO = TableId(7), TableId(4_000_000_000)


def increment(_: Key[Any], document: Document | None) -> Document:
    """Return the next number."""
    return {"n": 1 + (0 if document is None else document["n"])}


def test_a_key_without_a_name_selects_all_names(open_storage: OpenStorage) -> None:
    """It selects those of its kind and table alone. A key that selects nothing is changed from None."""
    storage = open_storage("shop")
    names = ["0/16B3748", "a.b_c", "ü 💧", "-"]
    kept = [Key(NUMBER), Key(NUMBER, TWO, names[0]), Key(OTHER, ONE), Key(NUMBER, TableId(70), "x")]
    storage.put(0, {key: {"n": 1} for key in [*(Key(NUMBER, ONE, name) for name in names), *kept]})
    done = storage.update(0, [Key(NUMBER, ONE), Key(NUMBER, None, "new")], increment)
    changed = {Key(NUMBER, ONE, name): ({"n": 1}, {"n": 2}) for name in names}
    assert done == {**changed, Key(NUMBER, None, "new"): (None, {"n": 1})}
    assert storage.scan(NUMBER) == {
        **{key: {"n": 2} for key in changed},
        **{key: {"n": 1} for key in [*kept, Key(NUMBER, None, "new")] if key.kind is NUMBER},
    }
    assert storage.delete(0, [Key(NUMBER, ONE), Key(OTHER, TWO)]) == {key: {"n": 2} for key in changed}
    assert [storage.get(key) for key in kept] == [{"n": 1}] * len(kept)
    storage.clear(0, kept[0])
    assert storage.scan(NUMBER) == {kept[0]: {"n": 1}}
    assert storage.scan(OTHER) == {}


def test_concurrent_updates_are_all_counted(open_storage: OpenStorage) -> None:
    """An update sees the result of the one before it, also if it had to wait for it."""
    storages = [open_storage("shop") for _ in range(4)]

    def count(storage: Storage) -> None:
        for _ in range(5):
            storage.update(0, [Key(NUMBER, ONE), Key(NUMBER, None, "x")], increment)

    with ThreadPoolExecutor(len(storages)) as pool:
        list(pool.map(count, storages))
    assert storages[0].scan(NUMBER) == {Key(NUMBER, ONE): {"n": 20}, Key(NUMBER, None, "x"): {"n": 20}}


def test_an_old_epoch_is_refused(open_storage: OpenStorage) -> None:
    """Also if there is nothing to write. A write without an epoch is never refused."""
    storage = open_storage("shop")
    storage.put(0, {Key(NUMBER): {"n": 1}, Key(NUMBER, ONE): {"n": 1}})
    assert storage.next_epoch(Key(NUMBER), lambda document: None) == 1
    for stale in (
        lambda: storage.put(0, {Key(NUMBER, ONE): {"n": 2}}),
        lambda: storage.put(0, {Key(NUMBER, ONE): {"n": 1}}),
        lambda: storage.delete(0, [Key(OTHER, ONE)]),
        lambda: storage.clear(0, Key(NUMBER)),
        lambda: storage.require_epoch(0),
    ):
        with pytest.raises(StaleEpoch):
            stale()
    assert storage.scan(NUMBER) == {Key(NUMBER): {"n": 1}, Key(NUMBER, ONE): {"n": 1}}
    storage.require_epoch(1)
    storage.put(None, {Key(NUMBER): {"n": 2}})
    assert storage.get(Key(NUMBER)) == {"n": 2}


def test_a_lower_epoch_is_a_lost_state(open_storage: OpenStorage) -> None:
    """No driver lowers it. The write is refused, and changes nothing."""
    storage = open_storage("shop")
    assert storage.next_epoch(Key(NUMBER), lambda document: None) == 1
    storage.stop_waiting()
    with pytest.raises(NeedsOperator) as lost:
        storage.put(2, {Key(NUMBER): {"n": 2}})
    assert lost.value.code == "store_empty"
    assert "its epoch there is 1, and was 2" in lost.value.message
    assert open_storage("shop").get(Key(NUMBER)) is None


def test_a_refused_takeover_raises_no_epoch(open_storage: OpenStorage) -> None:
    """The check sees the stored document, and its error leaves the epoch of the present driver valid."""
    storage = open_storage("shop")
    storage.put(0, {Key(NUMBER): {"n": 5}})

    def refuse(document: Document | None) -> None:
        raise NeedsOperator("refused", str(document))

    with pytest.raises(NeedsOperator) as refused:
        storage.next_epoch(Key(NUMBER), refuse)
    assert refused.value.message == "{'n': 5}"
    storage.require_epoch(0)
    assert storage.next_epoch(Key(NUMBER), lambda document: None) == 1
