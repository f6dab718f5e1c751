"""Streams of changes for asyncio. A thread of its own reads each, so that the event loop never waits for a server."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Final, Generic, Self, TypeVar

from levada.capture.acks import Ack
from levada.capture.interface import Change, ChangeCapture, ChangeStream, Continuity
from levada.errors import NeedsOperator
from levada.pgoutput.changes import ChangeBatch
from levada.values import QualifiedTable

T = TypeVar("T")

_POLL_S: Final = 0.25
"""The longest wait in seconds of the thread for the server, after which it looks whether the stream was closed."""


class AsyncStream(ABC, Generic[T]):
    """A stream of a capture that asyncio reads: ``async with`` opens it, ``async for`` reads it.

    Without ``tables`` it is the live stream, and else the snapshot of these tables. A task that is cancelled while it
    waits loses nothing: what the thread reads meanwhile is the next item. An ack may be confirmed in any thread.
    """

    def __init__(self, capture: ChangeCapture, tables: Sequence[QualifiedTable] | None = None) -> None:
        self._capture = capture
        self._tables = None if tables is None else tuple(tables)
        self._thread = ThreadPoolExecutor(1, "levada-async")
        self._stream: ChangeStream | None = None
        self._pending: asyncio.Future[T | None] | None = None
        self._turn = asyncio.Lock()
        self._closing = threading.Event()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._stream or f'not open, {self._capture!r}'}>"

    @property
    def continuity(self) -> Continuity:
        """Whether changes may be missing before this stream, as `ChangeStream.continuity`."""
        return self._opened().continuity

    @property
    def ended(self) -> bool:
        """True if there are no more items, because the stream was closed or read to its end."""
        return self._closing.is_set() or self._opened().ended

    async def poll(self, timeout_s: float) -> T | None:
        """Return the next item, or None if there is none within ``timeout_s`` seconds or at the end."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._next()
        except TimeoutError:
            return None

    async def close(self) -> None:
        """Release the connection and the slot. A second call has no effect."""
        if self._closing.is_set():
            return
        self._closing.set()
        if self._pending is not None:
            # No task waits for its error any more.
            self._pending.add_done_callback(lambda read: read.cancelled() or read.exception())
        closing = asyncio.get_running_loop().run_in_executor(self._thread, self._close)  # after the read that runs
        self._thread.shutdown(wait=False)
        await asyncio.shield(closing)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        item = await self._next()
        if item is None:
            raise StopAsyncIteration
        return item

    async def __aenter__(self) -> Self:
        opening = asyncio.get_running_loop().run_in_executor(self._thread, self._open)
        try:
            self._stream = await asyncio.shield(opening)
        except BaseException:
            # The thread may still open it.
            if not self._closing.is_set():
                self._closing.set()
                self._thread.submit(self._close)
                self._thread.shutdown(wait=False)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()

    @abstractmethod
    def _poll(self, stream: ChangeStream, timeout_s: float) -> T | None:
        """Return the stream's next item. In the thread."""

    async def _next(self) -> T | None:
        """Return the next item, or None at the end. One task at a time waits for it."""
        async with self._turn:
            if self._pending is None:
                if self._closing.is_set():
                    return None
                self._pending = asyncio.get_running_loop().run_in_executor(self._thread, self._read)
            item = await asyncio.shield(self._pending)
            self._pending = None
            return item

    def _open(self) -> ChangeStream:  # in the thread
        stream = self._capture.live() if self._tables is None else self._capture.snapshot(self._tables)
        self._stream = stream
        return stream

    def _read(self) -> T | None:  # in the thread
        stream = self._opened()
        while not self._closing.is_set():
            item = self._poll(stream, _POLL_S)
            if item is not None or stream.ended:
                return item
        return None

    def _close(self) -> None:  # in the thread
        if self._stream is not None:
            self._stream.close()

    def _opened(self) -> ChangeStream:
        if self._stream is None:
            raise NeedsOperator(
                "stream_not_open",
                f"the asynchronous stream of {self._capture!r} is not open",
                hint="open it first: async with AsyncChanges(capture) as changes",
            )
        return self._stream


class AsyncChanges(AsyncStream[Change]):
    """The changes of a capture, one by one, for asyncio."""

    def _poll(self, stream: ChangeStream, timeout_s: float) -> Change | None:
        return stream.poll(timeout_s)


class AsyncBatches(AsyncStream[tuple[ChangeBatch, Ack]]):
    """The changes of a capture as batches of whole transactions in Arrow columns, for asyncio."""

    def _poll(self, stream: ChangeStream, timeout_s: float) -> tuple[ChangeBatch, Ack] | None:
        return stream.poll_batch(timeout_s)
