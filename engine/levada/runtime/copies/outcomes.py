"""The beginning of a copy, and its outcomes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from levada.errors import Transient

if TYPE_CHECKING:
    import threading

    from levada.copy.progress import RunningCopy
    from levada.postgres.silence import Interrupt
    from levada.runtime.tables.copy_plan import Recreate, ReplaceInPlace
    from levada.schema import ReplicatedTableSchema
    from levada.schema.storage import TableStorage
    from levada.values import Lsn, QualifiedTable, TableId


@dataclass(frozen=True, slots=True)
class BegunCopy:
    """A copy that the supervisor has begun. ``since`` is that of `TableCopy.run`.

    With ``elsewhere``, another process makes it.
    """

    table: TableId
    name: QualifiedTable
    plan: Recreate | ReplaceInPlace
    cancelled: threading.Event
    since: Lsn | None
    elsewhere: bool = False


@dataclass(frozen=True, slots=True)
class Copied:
    """A durable copy as of ``lsn``. ``storage`` is the storage that the rows were read from.

    ``takes_all`` is False if its settings leave out rows of the source.
    """

    schema: ReplicatedTableSchema
    lsn: Lsn
    storage: TableStorage
    takes_all: bool = True


@dataclass(frozen=True, slots=True)
class Postponed:
    """A copy that begins again. ``alone`` is True if it must have a snapshot of its own then.

    Otherwise there was no time for it, and ``made`` is the number of copies that were made from the snapshot.
    """

    alone: bool
    made: int = 0


def cancelled_wait(cancelled: Collection[threading.Event], what: str) -> Interrupt:
    """Return what ends a wait for ``what`` with Transient ``copy_cancelled``, once all of ``cancelled`` are set."""

    def interrupt() -> None:
        if all(event.is_set() for event in cancelled):
            raise Transient("copy_cancelled", f"{what} was cancelled")

    return interrupt


Outcome = Copied | Postponed | BaseException
"""The end of a copy of a group."""


class CopyReports(Protocol):
    """Receives what becomes of the copies of a group."""

    def started(self, table: TableId, rows: RunningCopy) -> None:
        """Record that the rows of a table are read from now on."""

    def ended(self, outcomes: Mapping[TableId, Outcome]) -> None:
        """Record the ends of copies."""
