"""Pipelines over a storage of one's own, which keeps nothing, or is away from time to time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from itertools import count
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
from levada.status import ErrorProgress
from levada.stores import CachedStore, MemoryStorage, Storage
from levada.stores.codecs import OWNER
from levada.stores.storage import Change, Document, DocumentKind, Key, Versions
from levada.values import QualifiedTable

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


class Repeating(Own):
    """It repeats its calls itself, and says so."""

    retries = True


class Panic(BaseException):
    """As libraries in Rust raise it: no Exception."""


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


@pytest.mark.parametrize("kind", [Own, Repeating])
@pytest.mark.parametrize(("method", "answer"), WRONG_ANSWERS)
def test_an_answer_of_another_type_names_the_store(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, method: str, answer: object, kind: type[Own]
) -> None:
    """The start is refused with the class and the answer in the message, and has ended. A corrected store starts."""
    own = kind()
    rig.store = lambda: CachedStore("shop", own)
    rig.change(selects=Only("orders"))
    with monkeypatch.context() as wrong:
        wrong.setattr(Own, method, lambda *_: answer)
        with pytest.raises(NeedsOperator) as refused:
            rig.start()
        rig.stop()
    assert refused.value.code == "store_failed"
    assert (
        f"{kind.__name__} returned a {type(answer).__name__} that levada.stores.Storage does not allow"
        in refused.value.message
    )
    rig.start()
    rig.wait_caught_up()


@pytest.mark.parametrize("kind", [Own, Repeating])
@pytest.mark.parametrize("error", [OSError("no space left"), Panic("no space left")], ids=["exception", "panic"])
def test_an_exception_of_a_store_names_the_store(rig: Rig, kind: type[Own], error: BaseException) -> None:
    """It ends the pipeline with the class in the message. The hint is about the store, and names no table."""

    class Broken(kind):  # type: ignore[valid-type,misc]
        def answer(self, method: str) -> None:
            if method in self.away:
                raise error

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
    assert f"Broken raised {type(error).__name__}: no space left" in shown.reason
    assert "levada.Transient" in shown.solution
    assert "TABLE" not in shown.solution
    own.away = {}


@pytest.mark.parametrize("method", ["next_epoch", "scan", "update"])
def test_a_start_that_a_panic_ends_has_ended(rig: Rig, method: str) -> None:
    """The start raises it as it is, and neither a stop nor a wait hangs. The next start succeeds."""

    class Broken(Own):
        def answer(self, called: str) -> None:
            if called in self.away:
                raise Panic(called)

    own = Broken()
    rig.store = lambda: CachedStore("shop", own)
    rig.change(selects=Only("orders"))
    own.away = {method: 1}
    with pytest.raises(Panic):
        rig.start()
    failed = rig.running
    assert failed is not None
    assert failed.stop()
    with pytest.raises(NeedsOperator):
        failed.wait()
    own.away = {}
    rig.start()
    rig.wait_caught_up()


def test_the_thread_of_the_position_does_not_end_without_a_word(rig: Rig, db: Database) -> None:
    """An exit that a store raises there ends the pipeline, and is shown. Python ends such a thread in silence."""

    class Broken(Own):
        def answer(self, method: str) -> None:
            if self.away and threading.current_thread().name == "levada-position":
                raise SystemExit(3)

    own = Broken()
    rig.store = lambda: CachedStore("shop", own)
    rig.change(selects=Only("orders"))
    rig.start()
    rig.wait_caught_up()
    running = rig.running
    assert running is not None
    own.away = {"any": 1}
    ids = count(11)

    def error() -> ErrorProgress | None:
        # The thread of capture raises the error when it has staged the next change.
        with db.connect() as connection:
            connection.execute("INSERT INTO orders VALUES (%s)", [next(ids)])
        return running.progress().error

    ended = until(error)
    assert ended is not None
    assert ended.code == "store_failed"
    own.away = {}


def test_a_selection_that_exits_does_not_end_the_discovery(rig: Rig, db: Database) -> None:
    """The next discovery finds the new table."""
    exits = threading.Event()

    def selects(table: QualifiedTable) -> bool:
        if table.name == "more" and not exits.is_set():
            exits.set()
            raise SystemExit(3)
        return table.name in ("orders", "more")

    rig.change(selects=selects, discovery_s=0.1)
    rig.start()
    rig.wait_caught_up()
    db.execute("CREATE TABLE more (id int PRIMARY KEY)")
    rig.wait(lambda p: any(t.table.name == "more" for t in p.tables))


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
