"""Pipelines over a storage of one's own, which keeps nothing, or is away from time to time."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.rigs.command_line import manifest, on, replicated, run
from tests.rigs.database import Database
from tests.rigs.pipeline import Only, Rig
from tests.rigs.waiting import until
from tests.runtime.foreign_package import install_package

from levada.errors import NeedsOperator, Transient
from levada.stores import CachedStore, MemoryStorage, Storage
from levada.stores.codecs import OWNER
from levada.stores.storage import Change, Document, DocumentKind, Key, Versions

__all__ = ["manifest"]


class Own(Storage):
    """Documents in this process. Each method fails as often as ``away`` says, and those of ``down`` always."""

    def __init__(self) -> None:
        self.kept = MemoryStorage()
        self.away: dict[str, int] = {}
        self.down: frozenset[str] = frozenset()

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
        if method in self.down:
            raise Transient("own_away", f"{method} does not answer")
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
    own.down = frozenset({"update"})
    shown = rig.wait(lambda p: p.store.error is not None).store.error
    assert shown is not None
    assert (shown.code, shown.reason) == ("own_away", "update does not answer")
    own.down = frozenset()
    db.execute("INSERT INTO orders VALUES (11)")
    rig.wait_caught_up()
    assert rig.destination.applied_rows == {"orders": 1}


WRONG_ANSWERS: tuple[tuple[str, Any], ...] = (
    ("next_epoch", None),
    ("next_epoch", "2"),
    ("scan", None),
    ("scan", {"phase": {}}),
    ("update", None),
    ("update", {Key(OWNER): ({}, {})}),
)
"""Methods of a storage with answers that are not of its type."""


@pytest.mark.sampled
@pytest.mark.parametrize(("method", "answer"), WRONG_ANSWERS)
def test_an_answer_of_another_type_names_the_store(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, method: str, answer: object
) -> None:
    """The start is refused with the class and the answer in the message. A corrected store starts."""
    own = Own()
    rig.store = lambda: CachedStore("shop", own)
    rig.change(selects=Only("orders"))
    with monkeypatch.context() as wrong:
        wrong.setattr(Own, method, lambda *_: answer)
        with pytest.raises(NeedsOperator) as refused:
            rig.start()
    assert refused.value.code == "store_failed"
    assert f"Own returned a {type(answer).__name__} that levada.stores.Storage does not allow" in refused.value.message
    rig.start()
    rig.wait_caught_up()


def test_an_exception_of_a_store_names_the_store(rig: Rig) -> None:
    """It ends the pipeline with the class in the message. The hint is about the store, and names no table."""

    class Broken(Own):
        def answer(self, method: str) -> None:
            if method in self.away:
                raise OSError("no space left")

    own = Broken()
    rig.store = lambda: CachedStore("shop", own)
    rig.change(selects=Only("orders"))
    rig.start()
    rig.wait_caught_up()
    own.away = {"update": 1}
    assert rig.running is not None
    running = rig.running
    shown = until(lambda: running.progress().error)
    assert shown is not None
    assert shown.code == "store_failed"
    assert "Broken raised OSError: no space left" in shown.reason
    assert "levada.Transient" in shown.solution
    assert "TABLE" not in shown.solution
    own.away = {}


def test_a_clean_up_waits_for_the_store() -> None:
    """The removal of all documents is retried too."""
    own = Own()
    store = CachedStore("shop", own)
    store.next_epoch()
    store.store_fingerprint("slot", "text")
    own.away = {"clear": 1}
    store.delete_pipeline_state()
    assert store.load_fingerprints() == 0


THEIRS = """
from levada.stores import CachedStore, MemoryStorage

class Volatile(CachedStore):
    @classmethod
    def from_settings(cls, settings, context):
        return cls(context.pipeline, MemoryStorage())
"""


def test_a_manifest_may_name_a_volatile_store(
    db: Database, manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run is the same owner, a check between them finds no other one, and a request cannot reach the engine."""
    install_package(monkeypatch, tmp_path, "their_volatile_store", "Volatile", THEIRS, group="levada.stores")
    document = replicated(db, store={"custom": {"type": "theirs"}}, staging={"scratch": True})
    manifest.write_text(yaml.safe_dump(document))
    run(manifest)
    assert on(manifest, "check").exit_code == 0
    run(manifest)
    assert "[store_is_memory]" in on(manifest, "retry", "public.orders").stderr
    assert on(manifest, "cleanup", "--yes").exit_code == 0
