"""A step that a thread repeats while a block runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from levada.threads import marked_thread


@contextmanager
def repeated(step: Callable[[threading.Event], bool], every_s: float, name: str) -> Iterator[None]:
    """Call ``step`` every ``every_s`` seconds in a thread of this name, until it returns False or the block ends.

    The first call is after ``every_s`` seconds. The end of the block sets the event that ``step`` gets, and waits for a
    call that runs.
    """
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(every_s) and step(ended):
            pass

    thread = marked_thread(run, name)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
