"""The budget of the memory for changes, which capture and apply share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from levada.segments.manifest import Manifest
from levada.segments.writer import MAX_BUFFERED_BYTES
from levada.values import TableId

CAPTURE_BYTES: Final = 96 << 20
"""Bytes that batches leave to capture: the buffers of a segment, and a slice of the stream while it is decoded."""
BATCH_BYTES: Final = 256 << 20
"""Bytes that a large batch takes: a piece of 48 MiB, what is made of it, and the buffers of a file."""
LEAST_BYTES: Final = BATCH_BYTES + CAPTURE_BYTES
"""The budget with which capture never waits for one batch."""
_SMALL_BATCH: Final = 4 << 20
_EXPANSION: Final = 8
"""Bytes in memory for a byte of a staged file, which is compressed."""
_TURN_S: Final = 1.0
"""Seconds for which capture reads after a wait before another batch begins."""
_POLL_S: Final = 0.5


class MemoryBudget:
    """Bytes of memory that are taken and given back. Thread-safe.

    Capture waits while batches hold what it needs, and every change that it does not read stays at the source. Batches
    end by themselves. One batch may always begin, and capture may always read while there is none, so that neither a
    large transaction nor a large batch waits forever. ``clock`` is monotonic, in seconds.
    """

    def __init__(self, limit: int = 1 << 62, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit
        self._clock = clock
        self._changed = threading.Condition()
        self._capture = 0
        self._batches: list[int] = []
        self._waiting = False
        self._turn_ends = 0.0

    @property
    def used(self) -> int:
        """The bytes that are held."""
        with self._changed:
            return self._capture + sum(self._batches)

    @property
    def waiting(self) -> bool:
        """True while capture waits."""
        return self._waiting

    @property
    def segment_bytes(self) -> int:
        """The bytes that the open segment may buffer."""
        return min(MAX_BUFFERED_BYTES, max(1, self.limit // 4))

    def may_read(self, held: int, wanted: int) -> bool:
        """Return True if capture, which holds ``held`` bytes, may take ``wanted`` more. Otherwise it is waiting."""
        with self._changed:
            self._capture = held
            free = not self._batches or held + wanted + sum(self._batches) <= self.limit
            if free and self._waiting:
                self._turn_ends = self._clock() + _TURN_S
            self._waiting = not free
            return free

    def capture_ended(self) -> None:
        """Give back what capture holds."""
        with self._changed:
            self._capture, self._waiting = 0, False
            self._changed.notify_all()

    @contextmanager
    def batch(self, size: int, stopping: threading.Event) -> Iterator[None]:
        """Hold ``size`` bytes for a batch. Wait until they are free, or until no other batch holds any.

        Raise InterruptedError if ``stopping`` is set before.
        """
        with self._changed:
            while not self._may_begin(size):
                if stopping.is_set():
                    raise InterruptedError("stopped before there was memory for the batch")
                self._changed.wait(_POLL_S)
            self._batches.append(size)
        try:
            yield
        finally:
            with self._changed:
                self._batches.remove(size)
                self._changed.notify_all()

    def _may_begin(self, size: int) -> bool:
        if self._waiting or self._clock() < self._turn_ends:
            return False
        return not self._batches or sum(self._batches) + size + max(self._capture, CAPTURE_BYTES) <= self.limit


def batch_size(manifests: Sequence[Manifest], tables: Collection[TableId]) -> int:
    """Return the bytes of memory that a batch of these segments takes at most, by an estimate."""
    staged = sum(file.bytes for manifest in manifests for table in tables for file in manifest.files_of(table))
    return min(BATCH_BYTES, max(_SMALL_BATCH, staged * _EXPANSION))
