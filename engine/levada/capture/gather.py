"""Messages on their way to the decoder: slices that are large enough, and end where a segment can be cut. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from levada.pgoutput.messages import HEADER

SLICE_MESSAGES: Final = 16_384
SLICE_BYTES: Final = 4 << 20
"""Decoding has a fixed cost per slice and table, which this many messages make small."""

_BEGIN, _COMMIT = b"BC"


class Gather:
    """Collects received messages; not thread-safe."""

    def __init__(self) -> None:
        self._messages: list[bytes] = []
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._messages)

    @property
    def full(self) -> bool:
        """Tell whether there is enough for a slice."""
        return len(self._messages) >= SLICE_MESSAGES or self._bytes >= SLICE_BYTES

    def add(self, messages: Sequence[bytes]) -> None:
        """Take what was received, in order."""
        self._messages += messages
        self._bytes += sum(map(len, messages))

    def take(self, *, in_transaction: bool) -> list[bytes]:
        """Return all that is whole; if nothing is, all if there is enough for a slice, else nothing.

        ``in_transaction`` tells whether what was taken before ended inside of one.
        """
        end = self._whole(in_transaction) or (len(self._messages) if self.full else 0)
        taken, self._messages = self._messages[:end], self._messages[end:]
        self._bytes = sum(map(len, self._messages))
        return taken

    def _whole(self, in_transaction: bool) -> int:
        """Return how many messages there are up to where no transaction is open; 0 if there is no such place."""
        for i in range(len(self._messages) - 1, -1, -1):
            kind = self._messages[i][HEADER]
            if kind == _COMMIT:
                return len(self._messages)
            if kind == _BEGIN:
                return i
        return 0 if in_transaction else len(self._messages)
