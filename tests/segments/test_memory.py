"""The memory for changes: capture and batches share it, and neither waits forever."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.rigs.waiting import LIMIT_S, until

from levada.segments.memory import CAPTURE_BYTES, MemoryBudget

GOES = threading.Event()


class Clock:
    """A clock that the test moves."""

    now = 0.0
    looks = 0

    def __call__(self) -> float:
        self.looks += 1
        return self.now

    def wait_for_looks(self) -> None:
        """Wait for two more readings of the clock. The thread that reads it has acted on the first of them by then."""
        seen = self.looks
        until(lambda: self.looks >= seen + 2)


@contextmanager
def in_thread(budget: MemoryBudget, size: int, stopping: threading.Event = GOES) -> Iterator[threading.Event]:
    """Hold memory in a thread until the block ends. The event is set once the thread holds it."""
    holds, done = threading.Event(), threading.Event()

    def hold() -> None:
        with budget.batch(size, stopping):
            holds.set()
            done.wait(LIMIT_S)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        yield holds
    finally:
        done.set()
        thread.join(LIMIT_S)


def test_capture_waits_while_batches_hold_the_memory() -> None:
    """It goes on when they end, and it reads for a while before the next batch begins."""
    clock = Clock()
    budget = MemoryBudget(100, clock=clock)
    with budget.batch(90, GOES):
        assert budget.may_read(0, 10)
        assert not budget.may_read(5, 10)
        assert (budget.waiting, budget.used) == (True, 95)
    with in_thread(budget, 10) as begun:
        assert not begun.wait(0.1), "capture waits, so no batch begins"
        assert budget.may_read(5, 10)
        assert not budget.waiting
        clock.wait_for_looks()
        assert not begun.is_set(), "capture has its turn"
        clock.now = 10.0
        assert begun.wait(LIMIT_S)
    assert budget.used == 5
    budget.capture_ended()
    assert budget.used == 0


def test_a_batch_waits_for_others() -> None:
    """Batches leave room for capture, unless there is one only. A large one waits for the others to end."""
    limit = CAPTURE_BYTES + 100
    clock = Clock()
    budget = MemoryBudget(limit, clock=clock)
    with ExitStack() as stack:
        first = stack.enter_context(in_thread(budget, 60))
        assert first.wait(LIMIT_S)
        assert stack.enter_context(in_thread(budget, 40)).wait(LIMIT_S)
        with in_thread(budget, 1) as third:
            clock.wait_for_looks()
            assert not third.is_set()
            assert budget.used == 100
            stack.close()
            assert third.wait(LIMIT_S)
    with in_thread(budget, 10 * limit) as larger_than_all:
        assert larger_than_all.wait(LIMIT_S)


def test_a_transaction_larger_than_the_budget_is_read() -> None:
    """Without a batch, capture always reads: it writes what it holds to files."""
    budget = MemoryBudget(10)
    assert budget.may_read(1 << 30, 1 << 20)
    assert not budget.waiting
    assert budget.segment_bytes == 2


def test_a_stop_ends_the_wait() -> None:
    """A batch that waits for memory does not delay the end of the pipeline."""
    budget, stopping = MemoryBudget(10), threading.Event()
    with budget.batch(10, stopping):
        stopping.set()
        with pytest.raises(InterruptedError), budget.batch(10, stopping):
            pass
    assert budget.used == 0


def test_an_error_gives_the_memory_back() -> None:
    """A batch that fails holds nothing afterwards."""
    budget = MemoryBudget(10)
    with pytest.raises(ValueError, match="failed"), budget.batch(10, GOES):
        raise ValueError("failed")
    assert budget.used == 0


@given(st.lists(st.integers(1, 200), min_size=1, max_size=12), st.integers(1, 300))
def test_every_batch_gets_its_turn(sizes: list[int], limit: int) -> None:
    """Whatever the sizes and the budget, all batches and a capture that reads all the time come to an end."""
    clock = Clock()
    budget, ended = MemoryBudget(limit, clock=clock), []

    def run(size: int) -> None:
        with budget.batch(size, GOES):
            ended.append(size)

    threads = [threading.Thread(target=run, args=(size,)) for size in sizes]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        budget.may_read(limit // 2, limit // 3)
        clock.now += 5.0
        if threads[0].is_alive():
            threads[0].join(0.001)  # paced: a short wait for each round
        else:
            threads.append(threads.pop(0))
    assert sorted(ended) == sorted(sizes)
    assert budget.may_read(0, 1)
