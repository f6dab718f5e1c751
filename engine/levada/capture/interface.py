"""Interfaces of change capture for library users. They do not depend on the database or its mechanism."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Self

from levada.capture.acks import Ack
from levada.pgoutput.changes import ChangeBatch
from levada.pgoutput.events import Event
from levada.postgres.publications import CoverageReport
from levada.values import Lsn, QualifiedTable


class Continuity(StrEnum):
    """Whether changes may be missing before a resume point."""

    RESUMED = "Resumed"
    """The resume point is unchanged since this mechanism last moved it. No change is missing."""
    FRESH = "Fresh"
    """The resume point is new, or another consumer moved it. Take a snapshot: earlier changes are not in the stream."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change and the ack that confirms it.

    ``(commit_lsn, ordinal)`` orders changes and is the same in a replay. ``event`` is an event of
    `levada.pgoutput.events`, without logical messages. Each transaction of a live stream begins with a `Begin` and ends
    with a `Commit`. The rows of a snapshot have neither. ``end_of_transaction`` is True for the last change before the
    `Commit`, and for the `Commit`. Only rows and truncates need to be confirmed.
    """

    event: Event
    commit_lsn: Lsn
    ordinal: int
    end_of_transaction: bool
    ack: Ack


class ChangeStream(Iterator[Change], ABC):
    """Changes in commit order, transaction by transaction. One thread reads them, as changes or as batches.

    The stream is its own iterator, so a new loop continues after the last change that was read. Reading the same stream
    as changes and then as batches raises NeedsOperator ``stream_read_otherwise``. A stream that failed raises the same
    error on every later read.
    """

    continuity: Continuity = Continuity.FRESH
    """Whether changes may be missing before this stream. The default, Fresh, is the safe one."""

    @abstractmethod
    def batches(self) -> Iterator[tuple[ChangeBatch, Ack]]:
        """Return an iterator over batches of whole transactions as Arrow columns, each with the ack that confirms it.

        A second call continues after the last batch that was read. A transaction that is too large for memory is split
        into several batches. ``in_transaction`` is True for all of them except the last.
        """

    @abstractmethod
    def __next__(self) -> Change:
        """Return the next change."""

    @abstractmethod
    def poll(self, timeout_s: float) -> Change | None:
        """Return the next change, or None if there is none within ``timeout_s`` seconds or at the end.

        0 returns what has arrived already. `ended` distinguishes the end. The stream continues after the last change
        that was read, by this method or by a loop.
        """

    @abstractmethod
    def poll_batch(self, timeout_s: float) -> tuple[ChangeBatch, Ack] | None:
        """Return the next batch as `poll` returns the next change."""

    @property
    @abstractmethod
    def ended(self) -> bool:
        """True if there are no more changes, because the stream was closed or read to its end."""

    @abstractmethod
    def close(self) -> None:
        """Release the connection and the slot immediately. A second call has no effect."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class EmptyStream(ChangeStream):
    """A stream without changes, for mechanisms that take no snapshot."""

    def batches(self) -> Iterator[tuple[ChangeBatch, Ack]]:
        """Return an empty iterator."""
        return iter(())

    def __next__(self) -> Change:
        raise StopIteration

    def poll(self, timeout_s: float) -> Change | None:
        """Return None."""
        return None

    def poll_batch(self, timeout_s: float) -> tuple[ChangeBatch, Ack] | None:
        """Return None."""
        return None

    @property
    def ended(self) -> bool:
        """True, as there is no change."""
        return True

    def close(self) -> None:
        """Do nothing, as there is no resource to release."""


class ChangeCapture(ABC):
    """A source of changes. It stores its own resume point, so no method takes or returns a position."""

    @abstractmethod
    def live(self) -> ChangeStream:
        """Return an endless stream of changes that starts at the durable resume point.

        Confirmed changes are never sent again. The next stream sends unconfirmed changes again.
        """

    def prepare(self) -> Continuity:
        """Create the resume point if there is none. The next `live` stream has every change committed after it.

        Call this before the first snapshot. Return Fresh if changes before the resume point may be missing, so that a
        snapshot is needed. The caller keeps track of whether an earlier snapshot was completed.
        """
        return Continuity.FRESH

    def snapshot(self, tables: Sequence[QualifiedTable]) -> ChangeStream:
        """Return the tables' current rows as a finite stream of inserts.

        Its acks do not move the resume point. Call `prepare` first. A change that is made while the snapshot is read is
        then in the next `live` stream, and may be in the snapshot as well.
        """
        return EmptyStream()

    def lag(self) -> int | None:
        """Return the bytes between the durable resume point and the end of the source's WAL.

        Return None if there is no resume point yet. The method opens its own short-lived connection.
        """
        return None


class CaptureProvisioning(ABC):
    """Settings of the source that decide which changes it sends, such as a publication."""

    @abstractmethod
    def inspect_coverage(self, required: AbstractSet[QualifiedTable]) -> CoverageReport:
        """Compare the tables that the source sends with the required ones, without changing anything."""

    @abstractmethod
    def ensure_coverage(self, required: AbstractSet[QualifiedTable], *, manage: bool) -> CoverageReport:
        """Add missing tables if ``manage`` is True and the source permits it.

        Return the report from *before* the change. If the source does not permit it, log a warning with the SQL to run
        instead of raising.
        """
