"""The turns of verifications. One runs at a time, and a user's request ends one of the schedule."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_POLL_S: Final = 0.2


class Turns:
    """Gives one verification after the other its turn. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._cancel: threading.Event | None = None
        """The event that ends the running verification. None if none runs."""
        self._yields = False

    @contextmanager
    def wait(self, check: Callable[[], None]) -> Iterator[None]:
        """Wait for the turn and keep it during the block. A verification that yields is ended first.

        ``check`` is called while waiting, and raises to stop that.
        """
        with self._changed:
            while self._cancel is not None:
                if self._yields:
                    self._cancel.set()
                check()
                self._changed.wait(_POLL_S)
            self._cancel, self._yields = threading.Event(), False
        try:
            yield
        finally:
            self._end()

    @contextmanager
    def offer(self, cancelled: threading.Event) -> Iterator[bool]:
        """Take the turn for the block if no other verification has it. Yield True if it was taken.

        ``cancelled`` is set when another verification wants the turn.
        """
        with self._changed:
            taken = self._cancel is None
            if taken:
                self._cancel, self._yields = cancelled, True
        try:
            yield taken
        finally:
            if taken:
                self._end()

    def _end(self) -> None:
        with self._changed:
            self._cancel, self._yields = None, False
            self._changed.notify_all()
