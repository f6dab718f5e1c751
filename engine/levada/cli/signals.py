"""SIGINT and SIGTERM: the first signal requests a clean stop, the second exits immediately."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Final, Self

_STOPS: Final = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Records the first SIGINT or SIGTERM in ``received`` during the block. Only for the main thread."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._stop: Callable[[], None] = lambda: None
        self._before: dict[signal.Signals, Any] = {}

    def call(self, stop: Callable[[], None]) -> None:
        """Call ``stop`` in the handler of the first signal, or now if that was received before.

        ``stop`` must take no lock.
        """
        self._stop = stop
        if self.received is not None:
            stop()

    def __enter__(self) -> Self:
        for each in _STOPS:
            self._before[each] = signal.signal(each, self._receive)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)

    # An attribute, not an Event: a handler that takes a lock which the main thread holds would wait forever.
    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            os._exit(128 + number)
        self.received = signal.Signals(number)
        self._stop()
