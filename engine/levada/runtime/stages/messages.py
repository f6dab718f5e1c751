"""Messages from the stages to the supervisor. Any thread may send them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from levada.apply.applier import Applied
from levada.destinations.interface import NamedCut
from levada.errors import LevadaError
from levada.runtime.config import PipelineConfig
from levada.runtime.copies.staged_changes import Reply
from levada.runtime.copies.table_copy import Copied
from levada.runtime.tables.cut_state import Held
from levada.runtime.tables.resync import ResyncEnded, ResyncStarted
from levada.runtime.tables.silent_columns import Columns, Unmarked
from levada.runtime.tables.storage_journal import (
    PartitionsAltered,
    PartitionsCreated,
    TableAltered,
    TablesDropped,
    TablesUnpublished,
)
from levada.segments.manifest import Manifest
from levada.values import Lsn, QualifiedTable, TableId, Watermark

if TYPE_CHECKING:
    from levada.apply.leaf_rows import LeafRows
    from levada.copy.progress import RunningCopy
    from levada.postgres.storage import StorageSnapshot
    from levada.runtime.tables.source_tables import SourceTables
    from levada.schema.partitions import Arrival
    from levada.status import ErrorProgress, VerifiedProgress


@dataclass(frozen=True, slots=True)
class SegmentStaged:
    """A segment was staged."""

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
class ChangesWanted:
    """A copy that is resumed needs the segments with the table's changes below ``until``.

    ``reply`` is called once they are staged, with None if a segment is missing. It returns immediately.
    """

    table: TableId
    until: Lsn
    reply: Reply


@dataclass(slots=True)
class Reading:
    """The reading of an arrival, and what came of it, None while it runs."""

    cancelled: threading.Event = field(default_factory=threading.Event)
    outcome: LeafRows | BaseException | None = None


@dataclass(frozen=True, slots=True)
class LeafRead:
    """The rows of attached partitions of a table were read, or that failed."""

    table: TableId
    arrival: Arrival
    reading: Reading
    outcome: LeafRows | BaseException


@dataclass(frozen=True, slots=True)
class HoldWanted:
    """Another thread wants to hold a table, see `levada.runtime.stages.cuts`. ``reply`` returns immediately."""

    name: QualifiedTable
    reply: Callable[[Held | LevadaError], None]


@dataclass(frozen=True, slots=True)
class CutWanted:
    """The table that a thread holds shall apply its changes below ``until`` and no others.

    ``reply`` is called once it has, with the error if it cannot. It returns immediately.
    """

    table: TableId
    until: Lsn
    reply: Callable[[LevadaError | None], None]


@dataclass(frozen=True, slots=True)
class CutReleased:
    """A thread no longer holds the table. ``repaired``: its content at the destination was repaired."""

    table: TableId
    repaired: bool


@dataclass(frozen=True, slots=True)
class LakeCutWanted:
    """A user wants a cut of all tables with everything that is committed below ``after``.

    Without ``partial``, it is refused if a table cannot be part of it. ``reply`` is called with the refusal or None,
    and returns immediately.
    """

    name: str
    after: Lsn
    partial: bool
    reply: Callable[[LevadaError | None], None]


@dataclass(frozen=True, slots=True)
class LakeCutDropped:
    """A user no longer wants a cut of all tables. ``reply`` is that of `LakeCutWanted`."""

    name: str
    reply: Callable[[LevadaError | None], None]


@dataclass(frozen=True, slots=True)
class TagEnded:
    """The cut ``added`` was added to a table and ``removed`` ones were removed, or that failed.

    ``outcome`` has the cuts that the table has now.
    """

    table: TableId
    added: NamedCut | None
    removed: tuple[str, ...]
    outcome: tuple[NamedCut, ...] | BaseException


@dataclass(frozen=True, slots=True)
class ShadowCutWanted:
    """The shadow copy that a thread compares shall receive the changes below ``until`` and no others.

    ``reply`` is called once it has, with the error if it cannot. It returns immediately.
    """

    table: TableId
    until: Lsn
    reply: Callable[[LevadaError | None], None]


@dataclass(frozen=True, slots=True)
class Verified:
    """A thread has compared the table that it held. ``reply`` is called with an error if the table is another one now.

    It returns immediately. ``error`` is that of a table which cannot be read at the destination, or which differs
    (`rows_differ`). ``result`` is None if nothing was compared.
    """

    held: Held
    result: VerifiedProgress | None
    error: LevadaError | None
    reply: Callable[[LevadaError | None], None]


@dataclass(frozen=True, slots=True)
class VerificationBegan:
    """A verification that the manifest asks for begins. It waits until ``recorded`` is set."""

    table: TableId
    at: datetime
    recorded: threading.Event


@dataclass(frozen=True, slots=True)
class VerificationEnded:
    """A verification that the manifest asks for has ended, with an error or None. It handled ``nonce``."""

    table: TableId
    nonce: int
    error: ErrorProgress | None


@dataclass(frozen=True, slots=True)
class JobStarted:
    """A thread has started a job on these tables: a batch, maintenance, a watermark read or a swap."""

    tables: tuple[TableId, ...]
    at: datetime


@dataclass(frozen=True, slots=True)
class WatermarkRead:
    """A table's watermark at the destination, None if the table does not exist there, or the error of the read."""

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
    """Capture stages no more changes of the table.

    It waits until ``recorded`` is set, so that a restart finds the table parked.
    """

    table: TableId
    error: LevadaError
    recorded: threading.Event


@dataclass(frozen=True, slots=True)
class StorageRead:
    """The storage of the tables at the source. ``snapshot`` is None if it could not be read.

    Before it was read, ``marked`` tables got a mark with their columns in the stream. ``unmarked`` ones got none.
    """

    snapshot: StorageSnapshot | None
    marked: Mapping[TableId, Columns] = field(default_factory=dict)
    unmarked: Mapping[TableId, Unmarked] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SourceRestarted:
    """A session begins on a server that was restarted or replaced. Its history is verified up to ``verified_to``.

    Capture waits until ``recorded`` is set, so that no table continues from a copy of a history that the source no
    longer has.
    """

    verified_to: Lsn
    recorded: threading.Event


@dataclass(frozen=True, slots=True)
class Discovered:
    """The tables of the source that ``config`` selects. ``tables`` is None if they could not be read.

    ``error`` is the reason for that, if it does not pass by itself.
    """

    config: PipelineConfig
    tables: SourceTables | None
    error: LevadaError | None = None


@dataclass(frozen=True, slots=True)
class Reconfigured:
    """A new configuration takes effect."""

    config: PipelineConfig


@dataclass(frozen=True, slots=True)
class Fatal:
    """An error that ends the pipeline."""

    error: LevadaError


Report = (
    SegmentStaged
    | CopyStarted
    | CopyEnded
    | ChangesWanted
    | LeafRead
    | HoldWanted
    | CutWanted
    | CutReleased
    | LakeCutWanted
    | LakeCutDropped
    | TagEnded
    | ShadowCutWanted
    | Verified
    | VerificationBegan
    | VerificationEnded
    | JobStarted
    | WatermarkRead
    | ApplyEnded
    | MaintainEnded
    | ResyncStarted
    | ResyncEnded
    | TableFailed
    | TableAltered
    | PartitionsAltered
    | PartitionsCreated
    | TablesDropped
    | TablesUnpublished
    | StorageRead
    | SourceRestarted
    | Discovered
    | Reconfigured
    | Fatal
)


def next_inbox(inbox: queue.SimpleQueue[Report]) -> queue.SimpleQueue[Report]:
    """Return a new inbox with the configurations that are left in this one.

    Reports of earlier jobs are dropped, because they are about state that was replaced.
    """
    fresh: queue.SimpleQueue[Report] = queue.SimpleQueue()
    while not inbox.empty():
        report = inbox.get()
        if isinstance(report, Reconfigured):
            fresh.put(report)
    return fresh
