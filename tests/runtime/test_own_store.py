"""Pipelines over a storage of one's own, which keeps nothing, or is away from time to time."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import pytest
from tests.rigs.database import Database
from tests.rigs.pipeline import Only, Rig

from levada.errors import NeedsOperator, Transient
from levada.stores import CachedStore, MemoryStorage, Storage
from levada.stores.storage import Change, Document, DocumentKind, Key, Versions


class Own(Storage):
    """Documents in this process. Each method fails as often as ``away`` says."""

    def __init__(self) -> None:
        self.kept = MemoryStorage()
        self.away: dict[str, int] = {}

    def next_epoch(self, key: Key[Any], check: Callable[[Document | None], object]) -> int:
        self.answer("next_epoch")
        return self.kept.next_epoch(key, check)

    def scan(self, kind: DocumentKind[Any]) -> dict[Key[Any], Document]:
        self.answer("scan")
        return self.kept.scan(kind)

    def get(self, key: Key[Any]) -> Document | None:
        self.answer("get")
        return self.kept.get(key)

    def update(self, epoch: int | None, keys: Collection[Key[Any]], change: Change) -> dict[Key[Any], Versions]:
        self.answer("update")
        return self.kept.update(epoch, keys, change)

    def clear(self, epoch: int, kept: Key[Any]) -> None:
        self.answer("clear")
        self.kept.clear(epoch, kept)

    def close(self) -> None:
        self.kept.close()

    def answer(self, method: str) -> None:
        """Raise Transient while the method is away."""
        if self.away.get(method, 0):
            self.away[method] -= 1
            raise Transient("own_away", f"{method} does not answer")


class Volatile(Own):
    """It ends with the process, and says so."""

    volatile = True


def test_a_store_that_keeps_nothing_says_so(rig: Rig, db: Database) -> None:
    """Each start of a volatile one is the same owner, and copies again. Another one has lost its state."""
    rig.change(selects=Only("orders"))
    for copies in (1, 2):
        rig.store = lambda: CachedStore("shop", Volatile())
        rig.start()
        rig.wait_caught_up()
        assert rig.destination.copies_of("orders") == copies
        rig.stop()
    rig.store = lambda: CachedStore("shop", Own())
    with pytest.raises(NeedsOperator) as refused:
        rig.start()
    assert refused.value.code == "not_the_owner"


def test_a_store_that_is_away_is_waited_for(rig: Rig, db: Database) -> None:
    """A Transient of each method is retried and shown, at the start and later. Then the pipeline goes on."""
    own = Own()
    rig.store = lambda: CachedStore("shop", own)
    rig.change(selects=Only("orders"))
    own.away = {"next_epoch": 1, "scan": 1, "get": 1, "update": 1}
    rig.start()
    rig.wait_caught_up()
    assert set(own.away.values()) == {0}
    own.away = {"update": 3}
    shown = rig.wait(lambda p: p.store.error is not None).store.error
    assert shown is not None
    assert (shown.code, shown.reason) == ("own_away", "update does not answer")
    db.execute("INSERT INTO orders VALUES (11)")
    rig.wait_caught_up()
    assert own.away == {"update": 0}
    assert rig.destination.applied_rows == {"orders": 1}


def test_a_clean_up_waits_for_the_store() -> None:
    """The removal of all documents is retried too."""
    own = Own()
    store = CachedStore("shop", own)
    store.next_epoch()
    store.store_fingerprint("slot", "text")
    own.away = {"clear": 1}
    store.delete_pipeline_state()
    assert store.load_fingerprints() == 0
