"""A pipeline of accounts whose cuts are tested: its destination calls the test's functions, and may be held."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from tests.rigs.database import Database
from tests.rigs.pipeline import Only, Rig
from tests.rigs.waiting import LIMIT_S
from tests.writers import Writers

from levada.copy.rows import TableRows
from levada.destinations import NamedCut, Ordering, TableTarget
from levada.errors import NeedsOperator, Permanent
from levada.segments.batch import EventBatch
from levada.status import CutPhase, CutProgress
from levada.stores import Cut, MemoryStore
from levada.testing import MemoryDestination, MemoryTables
from levada.values import Durability, Lsn, TableId, Watermark

TABLES = ("a", "b", "c")
TOTAL = 300


@dataclass(slots=True)
class Gate:
    """A place at which a thread of the pipeline waits until the test opens it."""

    reached: threading.Event = field(default_factory=threading.Event)
    opened: threading.Event = field(default_factory=threading.Event)

    def pass_through(self) -> None:
        """Wait here until the test opens the gate."""
        self.reached.set()
        assert self.opened.wait(LIMIT_S)

    def wait_reached(self) -> None:
        """Wait until a thread is here."""
        assert self.reached.wait(LIMIT_S)


class Bank(MemoryDestination):
    """Keeps tables in memory, and calls the test's functions before batches and tags."""

    def __init__(self, place: MemoryTables) -> None:
        super().__init__(place)
        self.before_apply: Callable[[str], None] = lambda table: None
        self.before_tag: Callable[[NamedCut | None], None] = lambda cut: None
        self.before_copy: Callable[[], None] = lambda: None

    def write_events(self, events: EventBatch, mark: Watermark) -> Durability:
        for table in events.tables:
            self.before_apply(events.changes(table).schema.name.name)
        return super().write_events(events, mark)

    def copy_replacement(self, target: TableTarget, rows: TableRows, mark: Watermark) -> bool:
        self.before_copy()
        return super().copy_replacement(target, rows, mark)

    def update_cuts(
        self, table: TableId, added: NamedCut | None, removed: Collection[str], mark: Watermark
    ) -> Mapping[str, Lsn]:
        self.before_tag(added)
        return super().update_cuts(table, added, removed, mark)


class TogetherBank(Bank):
    """The same with all tables in one call."""

    capabilities = replace(Bank.capabilities, ordering=Ordering.PIPELINE)


class EndingStore(MemoryStore):
    """A store that ends the process, or has no room, at the write of a cut in a phase."""

    def __init__(self, rig: BankRig) -> None:
        super().__init__("shop", rig.storage)
        self.rig = rig

    def store_cut(self, cut: Cut) -> None:
        if cut.phase is self.rig.end_at:
            raise Permanent("made_up", "the process ends here")
        if cut.phase is self.rig.full_at:
            raise NeedsOperator("made_up", "the store is full", hint="do nothing")
        super().store_cut(cut)


class BankRig(Rig):
    """A pipeline of accounts in three tables, whose sum is constant in every transaction."""

    def __init__(self, db: Database, folder: Path, kind: type[Bank] = Bank) -> None:
        super().__init__(db, folder)
        self.kind, self.place = kind, MemoryTables()
        self.end_at: CutPhase | None = None
        self.full_at: CutPhase | None = None
        """The phase of cuts for which the store has no room."""
        self.store = lambda: EndingStore(self)
        self.bank = kind(self.place)
        self.change(selects=Only(*TABLES), freshness_s=0.3, batch_fill_s=0.05)

    def start(self) -> None:
        self.destination = self.bank  # type: ignore[assignment] # the rig's own kind counts rows only
        super().start()

    def restart(self) -> None:
        self.stop()
        self.bank = self.kind(self.place)
        self.start()

    def oid(self, table: str) -> TableId:
        [(oid,)] = self.db.query(f"SELECT '{table}'::regclass::oid::int")
        return TableId(oid)

    def hold_batches(self, table: str) -> Gate:
        """Let the next batches of a table wait at a gate."""
        gate = Gate()
        self.bank.before_apply = lambda applied: gate.pass_through() if applied == table else None
        return gate

    def cut(self, name: str, *, partial: bool = False) -> None:
        assert self.running is not None
        self.running.request_cut(name, partial=partial)

    def cuts(self) -> dict[str, CutProgress]:
        assert self.running is not None
        return {cut.name: cut for cut in self.running.cuts()}

    def wait_cut(self, name: str, *phases: CutPhase) -> CutProgress:
        """Wait until the cut is in one of the phases, by default one in which it has ended."""
        wanted = phases or (CutPhase.COMPLETE, CutPhase.INCOMPLETE)
        self.wait(lambda _: name in self.cuts() and self.cuts()[name].phase in wanted)
        return self.cuts()[name]

    def rows(self, table: str, name: str) -> dict[Any, Any]:
        """Return the balances of a table at a cut, by id."""
        oid = self.oid(table)
        with self.place.lock:
            held = {cut.name: kept for cut, kept in self.place.cuts.get(oid, {}).items()}[name]
        return {row["id"]: row["balance"] for row in held.named()}

    def tags(self, table: str) -> set[str]:
        oid = self.oid(table)
        with self.place.lock:
            return {cut.name for cut in self.place.cuts.get(oid, {})}

    def total(self, name: str) -> int:
        return sum(sum(self.rows(table, name).values()) for table in TABLES)

    def stored(self) -> Mapping[str, Cut]:
        store = self.store()
        store.load_cuts()
        return store.get_cuts()


def create(db: Database) -> None:
    """Create the accounts: ten in each table, with ten each."""
    for table in TABLES:
        db.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY, balance int)",
            f"INSERT INTO {table} SELECT i, 10 FROM generate_series(1, 10) i",
        )


@pytest.fixture
def rig(db: Database, tmp_path: Path) -> Iterator[BankRig]:
    """The pipeline, started and caught up."""
    create(db)
    made = BankRig(db, tmp_path)
    made.start()
    made.wait_caught_up()
    yield made
    made.stop()


class Transfers(Writers):
    """Moves money between random accounts of different tables, in a thread."""

    def write(self, connection: Any, seed: int) -> None:
        one, two = TABLES[self.count % 3], TABLES[(self.count + 1) % 3]
        with connection.transaction():
            connection.execute(f"UPDATE {one} SET balance = balance - 1 WHERE id = {self.count % 10 + 1}")
            connection.execute(f"UPDATE {two} SET balance = balance + 1 WHERE id = {self.count % 7 + 1}")
        self.stopped.wait(0.005)
