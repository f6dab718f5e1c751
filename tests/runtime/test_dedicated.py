"""The messages between a driver and the process of a dedicated copy. Nothing is copied here."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from tests.rigs.database import Database
from tests.rigs.recording import Recording
from tests.runtime.one_table import config_ref

from levada.copy.rows import TableRows
from levada.errors import LevadaError, NeedsOperator, Transient
from levada.runtime.config import PublicationConfig
from levada.runtime.config_ref import ConfigRef
from levada.runtime.copies.job import CopyJob, open_order
from levada.runtime.copies.orders import Answer, plan_to_text, read_answer
from levada.runtime.copies.remote import DedicatedCopy, OrderedCopy
from levada.runtime.copies.staged_changes import ChangesElsewhere
from levada.runtime.limits import Limits
from levada.runtime.resources.task_runner import open_task_runner
from levada.runtime.tables.copy_plan import Recreate
from levada.runtime.tables.requests import CopySettings
from levada.schema import IdentityKind, ReplicatedTableSchema, TableTarget
from levada.schema.storage import LeafStorage, TableStorage
from levada.status import CopyProgress
from levada.stores import CopyOrder, MemoryStore
from levada.values import Durability, Lsn, QualifiedTable, TableId, TableMode, Watermark

ORDERS, NAME = TableId(16402), QualifiedTable("public", "orders")
ORDER = CopyOrder("token", 1)
HALF = CopyProgress(5, 50, 10, 100, 50.0, 2.5, 4.0, 8, 4, True, "a note", 1)

Wait = Callable[[], Answer]


@pytest.fixture
def store() -> MemoryStore:
    """A store in which the driver has ordered a copy."""
    store = MemoryStore("shop")
    store.next_epoch()
    store.order_copy(ORDERS, ORDER)
    return store


@pytest.fixture
def seen() -> OrderedCopy:
    """Return the copy's progress as the driver shows it."""
    return OrderedCopy(ORDER.token)


def impatient(tmp_path: Path) -> ConfigRef:
    """Return a configuration with which the driver looks at the order all the time."""
    return ConfigRef(replace(config_ref(tmp_path).current, limits=Limits(order_poll_s=0.001)))


@pytest.fixture
def wait(store: MemoryStore, seen: OrderedCopy, tmp_path: Path) -> Wait:
    """Wait for the ordered copy, as the driver does, but asking often and with little patience."""
    copy = DedicatedCopy(impatient(tmp_path), store, Recording(), 1, silence_s=0.1)
    return lambda: copy._wait(ORDERS, NAME, ORDER, seen, threading.Event())


def said(store: MemoryStore, answer: Answer) -> None:
    """Answer as the process that has the order does."""
    order = store.get_copy_order(ORDERS)
    assert order is not None
    assert store.change_copy_order(ORDERS, order, replace(order, worker="job", answer=answer.to_text()))


@pytest.mark.parametrize(
    "answer",
    [
        Answer(),
        Answer(3, HALF),
        Answer(progress=HALF, lsn=Lsn(2**40)),
        Answer(error=Transient("a", "it broke", hint="wait")),
        Answer(error=NeedsOperator("b", "é", hint="")),
        Answer(kept="{}", ranges_finished=True),
    ],
)
def test_answers_arrive_as_they_were_said(answer: Answer) -> None:
    """Progress, position and error are the same on the other side, the retry policy too."""
    read = read_answer(replace(ORDER, answer=answer.to_text()))
    assert (read.beat, read.progress, read.lsn) == (answer.beat, answer.progress, answer.lsn)
    assert (read.kept, read.ranges_finished, read.final) == (answer.kept, answer.ranges_finished, answer.final)
    assert type(read.error) is type(answer.error)
    assert str(read.error) == str(answer.error)


def test_driver_takes_the_position(store: MemoryStore, wait: Wait, seen: OrderedCopy) -> None:
    """A copy that is done ends the wait, and what it came to is shown."""
    storage = TableStorage({ORDERS: LeafStorage(1, 2, False, False)}, {}, {})
    said(store, Answer(progress=HALF, lsn=Lsn(7), storage=storage))
    answer = wait()
    assert (answer.lsn, answer.storage) == (Lsn(7), storage)
    assert seen.progress() == HALF


def test_driver_raises_what_ended_the_copy(store: MemoryStore, wait: Wait) -> None:
    """An error of the other process parks the table as one of this process would."""
    said(store, Answer(error=NeedsOperator("select_privilege_missing", "no", hint="GRANT")))
    with pytest.raises(NeedsOperator) as caught:
        wait()
    assert (caught.value.code, caught.value.hint) == ("select_privilege_missing", "GRANT")


@pytest.mark.parametrize("now", [None, CopyOrder("another", 1)])
def test_driver_gives_up_what_is_not_its_order(store: MemoryStore, wait: Wait, now: CopyOrder | None) -> None:
    """An order that is gone, or another's, is not waited for."""
    store.order_copy(ORDERS, now)
    with pytest.raises(Transient) as caught:
        wait()
    assert caught.value.code == "copy_cancelled"


def test_silence_is_an_error(store: MemoryStore, wait: Wait) -> None:
    """The wait ends for an order that no process takes, and for one whose process is gone for good."""
    with pytest.raises(Transient) as caught:
        wait()
    assert caught.value.code == "copy_silent"


@pytest.mark.parametrize(
    "answer", [Answer(lsn=Lsn(1)), Answer(error=LevadaError("c", "no")), Answer(ranges_finished=True)]
)
def test_answered_order_is_no_order(store: MemoryStore, answer: Answer) -> None:
    """A process that restarts after its answer does nothing. Before the answer, it takes over its order."""
    said(store, Answer(beat=4))
    taken = open_order(store, ORDERS)
    assert taken is not None
    assert taken.worker == "job"
    said(store, answer)
    assert open_order(store, ORDERS) is None


def test_a_process_takes_no_order_but_its_own(store: MemoryStore, tmp_path: Path) -> None:
    """A pod of an earlier order is started again by its Job. Taking the new order would cancel the copy of that pod."""
    order = store.get_copy_order(ORDERS)
    assert order is not None
    assert open_order(store, ORDERS, "earlier") is None
    assert open_order(store, ORDERS, order.token) == open_order(store, ORDERS) == order
    nothing = cast(Any, None)
    job = CopyJob(config_ref(tmp_path).current, store, Recording(), nothing, threading.Event(), "earlier")
    assert job.run(ORDERS, NAME) is None
    assert store.get_copy_order(ORDERS) == order


class Elsewhere(Recording):
    """Knows the copy of another process only after `copied_elsewhere`, as a destination that keeps tables open."""

    def __init__(self, mark: Watermark) -> None:
        super().__init__()
        self._mark = mark
        self.targets: list[TableTarget] = []

    def copied_elsewhere(self, target: TableTarget) -> None:
        self.targets.append(target)
        self.marks[target.id] = self._mark


def test_the_destination_learns_of_the_copy_before_it_is_verified(store: MemoryStore, tmp_path: Path) -> None:
    """The process may have created the table under another name, which the driver's destination has never seen."""
    settings = CopySettings(NAME, TableMode.UPSERT, "bills", frozenset(), "", QualifiedTable("public", "bills"))
    schema = ReplicatedTableSchema(ORDERS, NAME, (), IdentityKind.FULL)
    destination = Elsewhere(Watermark("shop", 1, Lsn(7)))
    storage = TableStorage({ORDERS: LeafStorage(1, 2, False, False)}, {}, {})

    def copy_in_the_process(_: OrderedCopy) -> None:
        store.store_table_schema(schema)
        said(store, Answer(progress=HALF, lsn=Lsn(7), storage=storage))

    copied = DedicatedCopy(impatient(tmp_path), store, destination, 1, silence_s=60).run(
        ORDERS, NAME, Recreate(settings), threading.Event(), copy_in_the_process
    )
    assert copied is not None
    assert copied.lsn == Lsn(7)
    assert destination.targets == [TableTarget(schema, TableMode.UPSERT, QualifiedTable("public", "bills"))]


class Overtaken(Recording):
    """A process that pauses while it checks the table's place. The driver orders another copy meanwhile."""

    def __init__(self, store: MemoryStore, now: CopyOrder | None) -> None:
        super().__init__()
        self._store, self._now = store, now

    def check_place(self, target: TableTarget) -> None:
        self._store.order_copy(ORDERS, self._now)


@pytest.mark.parametrize("now", [None, CopyOrder("another", 1), CopyOrder("token", 1, worker="another")])
def test_a_process_without_the_order_removes_nothing(store: MemoryStore, tmp_path: Path, now: CopyOrder | None) -> None:
    """After a pause, the table and the stored schema may be those of the copy that was ordered since."""
    settings = CopySettings(NAME, TableMode.UPSERT, "", frozenset(), "", NAME)
    former = ReplicatedTableSchema(ORDERS, NAME, (), IdentityKind.FULL)
    store.store_table_schema(former)
    store.order_copy(ORDERS, CopyOrder("token", 1, plan=plan_to_text(Recreate(settings))))
    destination, cancelled = Overtaken(store, now), threading.Event()
    job = CopyJob(config_ref(tmp_path).current, store, destination, cast(Any, None), cancelled)
    with pytest.raises(Transient) as caught:
        job.run(ORDERS, NAME)
    assert caught.value.code == "copy_cancelled"
    assert destination.dropped == []
    assert store.get_table_schemas() == (former,)
    assert store.get_copy_order(ORDERS) == now
    assert cancelled.is_set()


def test_a_copy_that_the_destination_does_not_have(store: MemoryStore, tmp_path: Path) -> None:
    """The process reports a copy at one LSN, and the destination has an older one. The driver does not take it."""
    settings = CopySettings(NAME, TableMode.UPSERT, "", frozenset(), "", NAME)
    storage = TableStorage({ORDERS: LeafStorage(1, 2, False, False)}, {}, {})

    def copy_in_the_process(_: OrderedCopy) -> None:
        store.store_table_schema(ReplicatedTableSchema(ORDERS, NAME, (), IdentityKind.FULL))
        said(store, Answer(progress=HALF, lsn=Lsn(7), storage=storage))

    copy = DedicatedCopy(impatient(tmp_path), store, Elsewhere(Watermark("shop", 1, Lsn(6))), 1, silence_s=60)
    with pytest.raises(Transient) as lost:
        copy.run(ORDERS, NAME, Recreate(settings), threading.Event(), copy_in_the_process)
    assert lost.value.code == "copy_lost"
    assert lost.value.message == (
        "another process has copied public.orders at LSN 0/7, but the destination does not have that copy"
    )


def test_a_process_leaves_the_changes_to_the_driver() -> None:
    """An interrupted copy has read its ranges, and the staged changes since are for the driver alone."""
    target = TableTarget.of(ReplicatedTableSchema(ORDERS, NAME, (), IdentityKind.FULL))
    with pytest.raises(Transient) as finished:
        ChangesElsewhere().read(target, Lsn(1), Lsn(2), 0, lambda: None, shadow=False)
    assert finished.value.code == "copy_ranges_finished"
    assert finished.value.message == "all ranges of public.orders are copied, and the driver completes it"


class Withdrawn(Recording):
    """The driver cancels the order while the last rows are written."""

    def __init__(self, withdraw: Callable[[], None]) -> None:
        super().__init__()
        self._withdraw = withdraw

    def write_table_rows(self, target: TableTarget, rows: TableRows, mark: Watermark) -> Durability:
        done = super().write_table_rows(target, rows, mark)
        self._withdraw()
        return done


def test_a_complete_copy_without_its_order(db: Database, tmp_path: Path) -> None:
    """The process does not report what the driver no longer waits for, and exits with an error."""
    db.execute("CREATE TABLE orders (id int PRIMARY KEY)", "INSERT INTO orders VALUES (1)")
    db.execute("CREATE PUBLICATION p FOR TABLE orders")
    [(oid,)] = db.query("SELECT 'orders'::regclass::oid")
    table, store = TableId(oid), MemoryStore("shop")
    store.next_epoch()
    settings = CopySettings(NAME, TableMode.UPSERT, "", frozenset(), "", NAME)
    store.order_copy(table, CopyOrder("token", 1, plan=plan_to_text(Recreate(settings))))
    destination = Withdrawn(lambda: store.order_copy(table, None))
    config = replace(
        config_ref(tmp_path).current, source=db.connection, publication=PublicationConfig("p", managed=False)
    )
    tasks = open_task_runner(destination, None, "test")
    try:
        with pytest.raises(NeedsOperator) as superseded:
            CopyJob(config, store, destination, tasks, threading.Event()).run(table, NAME)
    finally:
        tasks.close()
    assert superseded.value.code == "copy_superseded"
    assert "the copy of public.orders is complete, but the driver has cancelled it" in superseded.value.message
    assert store.get_copy_order(table) is None
