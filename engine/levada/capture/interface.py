"""Change capture for library users: what any mechanism promises, whatever database is behind it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from levada.capture.acks import Ack
from levada.pgoutput.changes import ChangeBatch
from levada.pgoutput.events import Event
from levada.postgres.publications import CoverageReport
from levada.values import Lsn, QualifiedTable


@dataclass(frozen=True, slots=True)
class Change:
    """One change, and the ack that confirms it. ``(commit_lsn, ordinal)`` orders changes and is the same in a replay.

    ``event`` is an insert, update, delete, truncate or relation of `levada.pgoutput.events`.
    """

    event: Event
    commit_lsn: Lsn
    ordinal: int
    end_of_transaction: bool
    ack: Ack


class ChangeStream(ABC):
    """Changes in commit order, transaction by transaction; read by one thread, either as changes or as batches."""

    @abstractmethod
    def batches(self) -> Iterator[tuple[ChangeBatch, Ack]]:
        """Yield Arrow columns of whole transactions, with the ack that confirms them.

        A transaction too large for memory comes in several batches, of which the last one alone is not
        ``in_transaction``.
        """

    @abstractmethod
    def __iter__(self) -> Iterator[Change]:
        """Yield one change after another."""

    @abstractmethod
    def close(self) -> None:
        """Free what the stream holds, at once; not an error if it is closed already."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class EmptyStream(ChangeStream):
    """No changes: the snapshot of a mechanism that has none."""

    def batches(self) -> Iterator[tuple[ChangeBatch, Ack]]:
        """Yield nothing."""
        return iter(())

    def __iter__(self) -> Iterator[Change]:
        return iter(())

    def close(self) -> None:
        """Do nothing."""


class ChangeCapture(ABC):
    """A way to learn of changes. Where it resumes is its own affair: no position crosses this interface."""

    @abstractmethod
    def live(self) -> ChangeStream:
        """Resume from the mechanism's durable point and wait for changes without end.

        What is confirmed is never sent again; what is not, is sent again by the next stream.
        """

    def snapshot(self, tables: Sequence[QualifiedTable]) -> ChangeStream:
        """Return the tables' current rows as inserts; finite, without a mark at its end; its acks move nothing."""
        return EmptyStream()

    def lag(self) -> int | None:
        """Return the bytes between the durable resume point and the source's head; None before there is such a point.

        Uses a short connection of its own.
        """
        return None


class CaptureProvisioning(ABC):
    """What a source must be told before it tells its changes."""

    @abstractmethod
    def inspect_coverage(self, required: AbstractSet[QualifiedTable]) -> CoverageReport:
        """Compare what the source is ready to tell with what is required; change nothing."""

    @abstractmethod
    def ensure_coverage(self, required: AbstractSet[QualifiedTable], *, manage: bool) -> CoverageReport:
        """Close the gap where ``manage`` and the source allow it; return what was found *before* that.

        Not being allowed is a warning with the SQL to run, not an error.
        """
