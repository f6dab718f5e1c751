"""What the stages tell the supervisor, from whichever thread."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from levada.apply.applier import Applied
from levada.errors import LevadaError
from levada.runtime.config import PipelineConfig
from levada.runtime.copies.table_copy import Copied
from levada.runtime.tables.resync import ResyncEnded, ResyncStarted
from levada.runtime.tables.storage_journal import TableAltered
from levada.segments.manifest import Manifest
from levada.values import Lsn, TableId, Watermark

if TYPE_CHECKING:
    from levada.copy.progress import RunningCopy
    from levada.postgres.storage import StorageSnapshot
    from levada.runtime.source.preparation import SourceTables


@dataclass(frozen=True, slots=True)
class Landed:
    """A segment is durable."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class CopyStarted:
    """A copy has its snapshot and begins to read."""

    table: TableId
    rows: RunningCopy


@dataclass(frozen=True, slots=True)
class CopyEnded:
    """A copy is durable at the destination, or failed."""

    table: TableId
    outcome: Copied | BaseException


@dataclass(frozen=True, slots=True)
class JobBegun:
    """A batch or upkeep of these tables has left its queue."""

    tables: tuple[TableId, ...]
    at: datetime


@dataclass(frozen=True, slots=True)
class Looked:
    """What the destination says a table is marked with, None for no such table, or why it does not say."""

    table: TableId
    outcome: Watermark | BaseException | None


@dataclass(frozen=True, slots=True)
class ApplyEnded:
    """A batch is durable at the destination, or failed."""

    tables: tuple[TableId, ...]
    outcome: Applied | BaseException


@dataclass(frozen=True, slots=True)
class MaintainEnded:
    """Maintenance of a table is done, or failed."""

    table: TableId
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class TableFailed:
    """Capture leaves this one table out from here on; it waits for ``recorded``, so that no restart forgets."""

    table: TableId
    error: LevadaError
    recorded: threading.Event


@dataclass(frozen=True, slots=True)
class StorageSeen:
    """A look at the storage of the tables has ended. None: the source could not be asked."""

    look: StorageSnapshot | None


@dataclass(frozen=True, slots=True)
class SourceRestarted:
    """A session begins on a server that was restarted, or on another one, whose history is verified to a position.

    Capture waits for ``recorded``, so that no table goes on from a copy of a history that the source no longer has.
    """

    verified_to: Lsn
    recorded: threading.Event


@dataclass(frozen=True, slots=True)
class Discovered:
    """The tables of the source, of which ``config`` selects, as of now; None if the source could not be read."""

    config: PipelineConfig
    tables: SourceTables | None


@dataclass(frozen=True, slots=True)
class Reconfigured:
    """Another configuration is to hold from now on."""

    config: PipelineConfig


@dataclass(frozen=True, slots=True)
class Fatal:
    """Nothing can go on."""

    error: LevadaError


Report = (
    Landed
    | CopyStarted
    | CopyEnded
    | JobBegun
    | Looked
    | ApplyEnded
    | MaintainEnded
    | ResyncStarted
    | ResyncEnded
    | TableFailed
    | TableAltered
    | StorageSeen
    | SourceRestarted
    | Discovered
    | Reconfigured
    | Fatal
)


def next_inbox(inbox: queue.SimpleQueue[Report]) -> queue.SimpleQueue[Report]:
    """Return an inbox with the configurations that are left in this one, without what earlier jobs reported."""
    fresh: queue.SimpleQueue[Report] = queue.SimpleQueue()
    while not inbox.empty():
        report = inbox.get()
        if isinstance(report, Reconfigured):
            fresh.put(report)
    return fresh
