"""Buffers received messages into slices for the decoder. A slice ends between transactions if possible. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from levada.capture.message_stream import SliceLimits
from levada.pgoutput.messages import HEADER

_BEGIN, _COMMIT = b"BC"


class MessageBuffer:
    """A queue of received messages that is read in slices. Not thread-safe."""

    def __init__(self, limits: SliceLimits) -> None:
        self._limits = limits
        self._messages: list[bytes] = []
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._messages)

    @property
    def size(self) -> int:
        """The size of the messages in the buffer."""
        return self._bytes

    @property
    def full(self) -> bool:
        """Return True if the buffer has enough messages or bytes for a slice."""
        return len(self._messages) >= self._limits.messages or self._bytes >= self._limits.bytes

    def add(self, messages: Sequence[bytes]) -> None:
        """Append received messages, in stream order."""
        self._messages += messages
        self._bytes += sum(map(len, messages))

    def take(self, *, in_transaction: bool) -> list[bytes]:
        """Remove and return the messages up to the last transaction boundary.

        Without a boundary, return every message if the buffer is `full`, otherwise none. ``in_transaction`` is True if
        the previous slice ended inside a transaction.
        """
        end = self._last_boundary(in_transaction) or (len(self._messages) if self.full else 0)
        taken, self._messages = self._messages[:end], self._messages[end:]
        self._bytes = sum(map(len, self._messages))
        return taken

    def _last_boundary(self, in_transaction: bool) -> int:
        """Return the number of messages before the last point outside of a transaction, or 0 if there is none."""
        for i in range(len(self._messages) - 1, -1, -1):
            kind = self._messages[i][HEADER]
            if kind == _COMMIT:
                return len(self._messages)
            if kind == _BEGIN:
                return i
        return 0 if in_transaction else len(self._messages)
