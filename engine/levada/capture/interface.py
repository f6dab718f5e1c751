"""Change capture for library users: the contract of any mechanism, independent of the database behind it."""

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
    """The resume point is where this mechanism left it. Nothing is missing."""
    FRESH = "Fresh"
    """The resume point is new, or another consumer moved it. Take a snapshot: earlier changes are not in the stream."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change and the ack that confirms it.

    ``(commit_lsn, ordinal)`` orders changes and is the same in a replay. ``event`` is an insert, update, delete,
    truncate or relation of `levada.pgoutput.events`.
    """

    event: Event
    commit_lsn: Lsn
    ordinal: int
    end_of_transaction: bool
    ack: Ack


class ChangeStream(Iterator[Change], ABC):
    """Changes in commit order, transaction by transaction. One thread reads them, as changes or as batches.

    The stream is its own iterator: a loop that is left goes on where it was. Reading the same stream as changes and
    then as batches raises NeedsOperator ``stream_read_otherwise``. A stream that has failed raises its error again.
    """

    continuity: Continuity = Continuity.FRESH
    """Whether changes may be missing before this stream. Fresh unless the mechanism knows better."""

    @abstractmethod
    def batches(self) -> Iterator[tuple[ChangeBatch, Ack]]:
        """Return an iterator over Arrow columns of whole transactions, with the ack that confirms them.

        Calling it again goes on after the last batch. A transaction too large for memory comes in several batches, of
        which the last one alone is not ``in_transaction``.
        """

    @abstractmethod
    def __next__(self) -> Change:
        """Return the next change."""

    @abstractmethod
    def close(self) -> None:
        """Free what the stream holds, without delay. Closing it twice is not an error."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class EmptyStream(ChangeStream):
    """No changes: the snapshot of a mechanism that has none."""

    def batches(self) -> Iterator[tuple[ChangeBatch, Ack]]:
        """Yield nothing."""
        return iter(())

    def __next__(self) -> Change:
        raise StopIteration

    def close(self) -> None:
        """Do nothing."""


class ChangeCapture(ABC):
    """A source of changes. It keeps its own resume point: no position crosses this interface."""

    @abstractmethod
    def live(self) -> ChangeStream:
        """Resume from the mechanism's durable point and wait for changes without end.

        What is confirmed is never sent again. What is not confirmed is sent again by the next stream.
        """

    def prepare(self) -> Continuity:
        """Make the resume point if there is none: changes from here on are in the next `live` stream.

        Call it before the first snapshot. The answer is Fresh if changes before the resume point may be missing, so
        that a snapshot is needed. Whether an earlier snapshot was completed is for the caller to remember.
        """
        return Continuity.FRESH

    def snapshot(self, tables: Sequence[QualifiedTable]) -> ChangeStream:
        """Return the tables' current rows as inserts.

        The stream is finite and has no mark at its end. Its acks move nothing. `prepare` comes first, so a change made
        while the snapshot is read is in the next `live` stream, and may be in the snapshot as well.
        """
        return EmptyStream()

    def lag(self) -> int | None:
        """Return the bytes between the durable resume point and the source's head, None before there is such a point.

        Uses a short connection of its own.
        """
        return None


class CaptureProvisioning(ABC):
    """The source's own settings that decide which changes it sends."""

    @abstractmethod
    def inspect_coverage(self, required: AbstractSet[QualifiedTable]) -> CoverageReport:
        """Compare the tables that the source sends with those that are required. Change nothing."""

    @abstractmethod
    def ensure_coverage(self, required: AbstractSet[QualifiedTable], *, manage: bool) -> CoverageReport:
        """Close the gap where ``manage`` and the source allow it. Return the report from *before* that.

        Not being allowed is a warning with the SQL to run, not an error.
        """
