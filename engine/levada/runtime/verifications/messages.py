"""Messages from the threads of verifications to the supervisor, see `levada.runtime.stages.holds`."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from levada.errors import LevadaError
from levada.runtime.inbox import Ask, Inbox, Message, Recorded
from levada.runtime.tables.hold_state import Held
from levada.values import Lsn, QualifiedTable, TableId

if TYPE_CHECKING:
    from levada.status import ErrorProgress, ProofProgress, VerifiedProgress


@dataclass(frozen=True, slots=True)
class HoldWanted(Ask[Held]):
    """A thread wants to hold a table."""

    name: QualifiedTable

    def decline(self, inbox: Inbox) -> None:
        """Release the table if it is granted after all, for a caller that has ended its wait."""

        def granted(answer: Future[Held]) -> None:
            if answer.exception() is None:
                inbox.put(HoldReleased(answer.result().table, repaired=False))

        self.answer.add_done_callback(granted)


@dataclass(frozen=True, slots=True)
class HoldAt(Ask[None]):
    """The table that a thread holds shall apply its changes below ``until`` and no others. Answered once it has."""

    table: TableId
    until: Lsn


@dataclass(frozen=True, slots=True)
class HoldReleased(Message):
    """A thread no longer holds the table. ``repaired``: its content at the destination was repaired.

    ``erased``: rows were erased, so that the table may have left cuts.
    """

    table: TableId
    repaired: bool
    erased: bool = False


@dataclass(frozen=True, slots=True)
class NotCompared(Message):
    """A table whose row filter was changed cannot be compared with the source, or not repaired."""

    table: TableId
    error: LevadaError


@dataclass(frozen=True, slots=True)
class ShadowHoldAt(Ask[None]):
    """The shadow copy that a thread compares shall receive the changes below ``until``. Answered once it has."""

    table: TableId
    until: Lsn


@dataclass(frozen=True, slots=True)
class Verified(Ask[None]):
    """A thread has compared the table that it held. The answer is an error if the table is another one now.

    ``error`` is that of a table which cannot be read at the destination, or which differs (`rows_differ`). ``result``
    is None if nothing was compared.
    """

    held: Held
    result: VerifiedProgress | None
    error: LevadaError | None


@dataclass(frozen=True, slots=True)
class Proved(Ask[None]):
    """A thread has compared a range of keys. The answer is an error if the table is another one now.

    ``key`` and ``to`` are ``proved_key`` and ``proved_to`` of `VerificationRecord`.
    """

    held: Held
    proof: ProofProgress
    key: str
    to: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class NotProved(Message):
    """A thread could not compare a range of keys, for which it kept the source busy for ``busy_s`` seconds."""

    table: TableId
    problem: str
    busy_s: float
    at: datetime


@dataclass(frozen=True, slots=True)
class CatalogChanged(Message):
    """The tables should be compared with the catalog soon, after which the stream shows changes of their columns."""


@dataclass(frozen=True, slots=True)
class VerificationBegan(Recorded):
    """A verification that the manifest asks for begins."""

    table: TableId
    at: datetime


@dataclass(frozen=True, slots=True)
class VerificationEnded(Message):
    """A verification that the manifest asks for has ended, with an error or None. It handled ``nonce``."""

    table: TableId
    nonce: int
    error: ErrorProgress | None
