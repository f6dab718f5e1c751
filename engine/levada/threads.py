"""Threads with a mark of the object that they run for, however deep in the code they are started.

A call from a user's code may come from any thread. By the mark, the called object knows whether that thread runs for
it, so that the call must not wait for the thread's end. A thread gets the marks of the code that creates it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

_OWNERS: Final[ContextVar[tuple[object, ...]]] = ContextVar("levada_owners", default=())


@contextmanager
def running_for(owner: object) -> Iterator[None]:
    """Mark the block, and the threads that it creates, as running for ``owner``."""
    token = _OWNERS.set((*_OWNERS.get(), owner))
    try:
        yield
    finally:
        _OWNERS.reset(token)


def runs_for(owner: object) -> bool:
    """Return True if the calling code runs for ``owner``."""
    return any(each is owner for each in _OWNERS.get())


def marked_thread(target: Callable[..., object], name: str, *args: Any) -> threading.Thread:
    """Return a daemon thread that is not started. It has the marks of the caller."""
    owners = _OWNERS.get()

    def run() -> None:
        # No copy of the caller's context, because that has the precision of decimals too.
        _OWNERS.set(owners)
        target(*args)

    return threading.Thread(target=run, name=name, daemon=True)


class MarkedPool(ThreadPoolExecutor):
    """A pool whose threads have the marks of the code that makes it."""

    def __init__(self, threads: int, name: str) -> None:
        super().__init__(threads, name, _OWNERS.set, (_OWNERS.get(),))
