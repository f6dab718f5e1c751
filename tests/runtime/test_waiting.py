"""Long work that a signal or a deadline can leave."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.rigs.waiting import LIMIT_S

from levada.errors import Transient
from levada.runtime.host.waiting import Interrupted, wait_for


def fail() -> None:
    """Fail as a source does that has just stopped."""
    raise Transient("source_stopping", "the source stops")


def test_the_result_comes_back() -> None:
    """Work that is not left returns what it returned, and raises what it raised."""
    assert wait_for(lambda: 7, lambda: False) == 7
    with pytest.raises(Transient):
        wait_for(fail, lambda: False)


def test_work_is_left() -> None:
    """Work that does not end is left as soon as that is asked for."""
    with pytest.raises(Interrupted):
        wait_for(threading.Event().wait, lambda: True)


def test_work_that_ends_in_time_is_not_left() -> None:
    """With patience, work that is about to end is waited for."""
    released = threading.Event()

    def leave() -> bool:
        released.set()
        return True

    assert wait_for(lambda: released.wait(LIMIT_S) and "made", leave, patience_s=60) == "made"


def test_an_error_after_the_signal_is_no_error() -> None:
    """A signal to the process group ends Spark's JVM too, and what that breaks is not an error of its own."""
    with pytest.raises(Interrupted):
        wait_for(fail, lambda: True, patience_s=60)


def test_a_late_result_is_discarded() -> None:
    """Work that was abandoned and ends later has its result closed, which the caller does not receive."""
    release, discarded = threading.Event(), threading.Event()
    with pytest.raises(Interrupted):
        wait_for(lambda: release.wait(LIMIT_S), lambda: True, discard=lambda result: discarded.set())
    assert not discarded.is_set()
    release.set()
    assert discarded.wait(LIMIT_S)


def test_a_result_after_an_interrupted_wait_is_discarded() -> None:
    """Ctrl-C in a Python program ends the wait with KeyboardInterrupt. The work's result is closed then too."""
    release, discarded = threading.Event(), threading.Event()

    def press_ctrl_c() -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        wait_for(lambda: release.wait(LIMIT_S), press_ctrl_c, discard=lambda result: discarded.set())
    release.set()
    assert discarded.wait(LIMIT_S)


def test_a_result_after_which_the_observer_fails_is_discarded() -> None:
    """An observer whose context raises an error once the work has ended leaves nothing open. Otherwise nothing ends."""
    discarded: list[str] = []

    @contextmanager
    def failing() -> Iterator[None]:
        yield
        raise OSError("no terminal")

    with pytest.raises(OSError, match="no terminal"):
        wait_for(lambda: "made", lambda: False, discard=discarded.append, during=failing())
    assert discarded == ["made"]
    assert wait_for(lambda: "kept", lambda: False, discard=discarded.append) == "kept"
    assert discarded == ["made"]


def test_work_is_interrupted_once() -> None:
    """Work that can be shortened is asked to end when it is left, and its own error then is no error."""
    asked: list[bool] = []
    stopping = threading.Event()

    def work() -> None:
        stopping.wait(LIMIT_S)
        fail()

    def interrupt() -> None:
        asked.append(True)
        stopping.set()

    with pytest.raises(Interrupted):
        wait_for(work, lambda: True, patience_s=60, interrupt=interrupt)
    assert asked == [True]
