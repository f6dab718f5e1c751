"""Streams of changes for library users. A change is a view of a decoded batch, and each stream is read once."""

from __future__ import annotations

import time
import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import Final, TypeVar

from levada.capture.acks import Ack
from levada.capture.interface import Change, ChangeStream, Continuity
from levada.errors import NeedsOperator
from levada.pgoutput.changes import ChangeBatch, LogicalMessage
from levada.pgoutput.events import Begin, Commit, Event, RelationEvent, TransactionBounds, batch_events
from levada.values import Lsn

MOVES_NOTHING: Final = Ack(lambda: None)
IDLE_S: Final = 0.25
"""Seconds after which a source that waits for changes says that there are none yet."""

T = TypeVar("T")


class BatchSource(ABC):
    """Decoded batches and the acks of their changes.

    It holds no reference to the stream that reads it, so that an unclosed stream can be garbage-collected.
    """

    finite: bool = False
    """Whether the source has an end.

    If it does, closing the stream before the end makes a later read raise an error.
    """

    wait_s: float = IDLE_S
    """Seconds for which the source waits for changes before it yields None."""

    @abstractmethod
    def decoded(self) -> Iterator[ChangeBatch | None]:
        """Yield decoded slices, and None each time that nothing has arrived for ``wait_s``.

        A slice ends inside a transaction only if that is too large for one. A slice may be empty.
        """

    @abstractmethod
    def close(self) -> None:
        """Release the connection and other resources."""

    @abstractmethod
    def abandon(self) -> None:
        """Request the release of resources without waiting for a lock.

        The garbage collector may call this in any thread.
        """

    def ack(self, commit_lsn: Lsn, *, last: bool) -> Ack:
        """Register a change of the transaction that commits at ``commit_lsn``, and return its ack.

        ``last`` is True for the last change of the transaction.
        """
        return MOVES_NOTHING

    def batch_ack(self, batch: ChangeBatch) -> Ack:
        """Register a batch, and return its ack."""
        return MOVES_NOTHING

    def delivered(self, batch: ChangeBatch) -> None:  # noqa: B027 - a snapshot has nothing to record
        """Record that the stream has returned every change of the batch."""


class BatchedStream(ChangeStream):
    """A stream over a `BatchSource`.

    If it is garbage-collected before it was closed, it releases its source and emits a ResourceWarning.
    """

    def __init__(self, source: BatchSource, what: str, continuity: Continuity = Continuity.FRESH) -> None:
        self.continuity = continuity
        self._source = source
        self._what = what
        self._changes: Iterator[Change | None] | None = None
        self._batches: Iterator[tuple[ChangeBatch, Ack] | None] | None = None
        self._closed = False
        self._exhausted = False
        self._error: Exception | None = None
        self._finalizer = weakref.finalize(self, _release_unclosed, source, what)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._what}{', ended' if self.ended else ''}>"

    @property
    def ended(self) -> bool:
        """True if the stream was closed, or read to its end."""
        return self._closed or self._exhausted

    def batches(self) -> Iterator[tuple[ChangeBatch, Ack]]:
        """Return an iterator over the batches, which continues after the last batch that was read."""
        self._as_batches()
        return _Batches(self)

    def __next__(self) -> Change:
        changes = self._as_changes()
        while (change := self._advance(changes, IDLE_S)) is None:
            pass
        return change

    def poll(self, timeout_s: float) -> Change | None:
        """Return the next change, or None if there is none within ``timeout_s`` seconds or at the end."""
        return self._poll(self._as_changes(), timeout_s)

    def next_batch(self) -> tuple[ChangeBatch, Ack]:
        """Return the next batch. Raise StopIteration at the end."""
        batches = self._as_batches()
        while (batch := self._advance(batches, IDLE_S)) is None:
            pass
        return batch

    def poll_batch(self, timeout_s: float) -> tuple[ChangeBatch, Ack] | None:
        """Return the next batch, or None if there is none within ``timeout_s`` seconds or at the end."""
        return self._poll(self._as_batches(), timeout_s)

    def close(self) -> None:
        """Close the stream and release its source."""
        self._closed = True
        self._finalizer.detach()
        self._source.close()

    def _as_changes(self) -> Iterator[Change | None]:
        if self._batches is not None:
            raise self._read_otherwise("batches")
        if self._changes is None:
            self._changes = _as_changes(self._source)
        return self._changes

    def _as_batches(self) -> Iterator[tuple[ChangeBatch, Ack] | None]:
        if self._changes is not None:
            raise self._read_otherwise("changes")
        if self._batches is None:
            self._batches = _with_acks(self._source)
        return self._batches

    def _poll(self, items: Iterator[T | None], timeout_s: float) -> T | None:
        deadline = time.monotonic() + timeout_s
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            try:
                item = self._advance(items, min(IDLE_S, left_s))
            except StopIteration:
                return None
            if item is not None or not left_s:
                return item

    def _advance(self, items: Iterator[T | None], wait_s: float) -> T | None:
        """Return the next item, or None if nothing has arrived for ``wait_s``. Raise StopIteration at the end."""
        if self._error is not None:
            raise self._error
        if self._closed and self._source.finite and not self._exhausted:
            raise NeedsOperator(
                "stream_closed", f"{self._what} was closed before its end was read", hint="take a new snapshot"
            )
        if self._closed or self._exhausted:
            raise StopIteration
        self._source.wait_s = wait_s
        try:
            return next(items)
        except StopIteration:
            self._exhausted = not self._closed
            raise
        except Exception as error:
            self._error = error
            raise
        except BaseException as error:
            # Such as Ctrl-C. It has ended the iterator, and the next read would take that for the stream's end.
            why = f"{self._what} was interrupted by {type(error).__name__} before its end was read"
            self._error = NeedsOperator("stream_closed", why, hint="open another stream, or take a new snapshot")
            raise

    def _read_otherwise(self, view: str) -> NeedsOperator:
        return NeedsOperator(
            "stream_read_otherwise",
            f"{self._what} is already read as {view}: to read it in both ways would skip changes",
            hint="open a second stream",
        )


class _Batches(Iterator[tuple[ChangeBatch, Ack]]):
    """An iterator over a stream's batches.

    Its reference to the stream prevents that the stream is garbage-collected.
    """

    def __init__(self, stream: BatchedStream) -> None:
        self._stream = stream

    def __next__(self) -> tuple[ChangeBatch, Ack]:
        return self._stream.next_batch()


def _release_unclosed(source: BatchSource, what: str) -> None:
    source.abandon()
    warnings.warn(f"{what} was not closed", ResourceWarning, stacklevel=2)


def _with_acks(source: BatchSource) -> Iterator[tuple[ChangeBatch, Ack] | None]:
    """Yield the batches, and None where a reader with a time limit may leave."""
    inside = False
    for batch in source.decoded():
        if batch is None:
            yield None
            continue
        if batch.items or inside:
            yield batch, source.batch_ack(batch)
        else:
            source.delivered(batch)
            yield None
        inside = batch.in_transaction


def _as_changes(source: BatchSource) -> Iterator[Change | None]:
    """Yield the events of all batches, and None where a reader with a time limit may leave.

    Each event inside a transaction is held back until the next one arrives. Only then is it known whether it is the
    last before the `Commit`.
    """
    bounds = TransactionBounds()
    held: Event | None = None
    for batch in source.decoded():
        if batch is None:
            yield None
            continue
        for event in _events(batch, bounds):
            if held is not None:
                yield _change(source, held, last=isinstance(event, Commit))
            held = event
            if isinstance(event, Commit):
                yield _change(source, event, last=True)
                held = None
        source.delivered(batch)
        yield None
    if held is not None and source.finite:
        yield _change(source, held, last=False)


def _events(batch: ChangeBatch, bounds: TransactionBounds) -> Iterator[Event]:
    items = tuple(i for i in batch.items if not isinstance(i, LogicalMessage))
    return batch_events(replace(batch, items=items), bounds)


def _change(source: BatchSource, event: Event, *, last: bool) -> Change:
    # The server sends the relations again in every session, and the acks of its rows confirm a transaction.
    needs_none = isinstance(event, Begin | Commit | RelationEvent)
    ack = MOVES_NOTHING if needs_none else source.ack(event.commit_lsn, last=last)
    return Change(event, event.commit_lsn, event.ordinal, last, ack)
