"""Messages from the stages to the supervisor. Any thread may send them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from levada.apply.applier import Applied
from levada.destinations.interface import NamedCut
from levada.errors import LevadaError
from levada.runtime.config import PipelineConfig
from levada.runtime.copies.outcomes import Outcome
from levada.runtime.inbox import Ask, Message, Recorded
from levada.runtime.tables.silent_columns import Columns, Unmarked
from levada.schema import ReplicatedTableSchema
from levada.segments.files import SegmentFile
from levada.segments.manifest import Manifest
from levada.values import Lsn, TableId, Watermark

if TYPE_CHECKING:
    from levada.apply.moves import LeafRows
    from levada.copy.progress import RunningCopy
    from levada.postgres.storage import StorageSnapshot
    from levada.runtime.tables.source_tables import SourceTables
    from levada.schema.partitions import Arrival


@dataclass(frozen=True, slots=True)
class SegmentStaged(Message):
    """A segment was staged."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class FileStagedEarly(Message):
    """A file of a transaction in progress is complete. Its rows have the version ``schema``."""

    file: SegmentFile
    schema: ReplicatedTableSchema


@dataclass(frozen=True, slots=True)
class EarlyFilesRemoved(Message):
    """Files of a transaction in progress are removed, because it was rolled back or is read again."""

    files: tuple[SegmentFile, ...]


@dataclass(frozen=True, slots=True)
class FileFolded(Message):
    """A file of a transaction in progress was folded, or that failed."""

    table: TableId


@dataclass(frozen=True, slots=True)
class CopyStarted(Message):
    """A copy has its snapshot and begins to read."""

    table: TableId
    rows: RunningCopy


@dataclass(frozen=True, slots=True)
class CopiesEnded(Message):
    """Copies that are durable at the destination, were postponed, or failed. Their ends are stored in one step."""

    outcomes: Mapping[TableId, Outcome]


@dataclass(slots=True)
class Reading:
    """The reading of an arrival, and what came of it, None while it runs."""

    cancelled: threading.Event = field(default_factory=threading.Event)
    outcome: LeafRows | BaseException | None = None


@dataclass(frozen=True, slots=True)
class LeafRead(Message):
    """The rows of attached partitions of a table were read, or that failed."""

    table: TableId
    arrival: Arrival
    reading: Reading
    outcome: LeafRows | BaseException


@dataclass(frozen=True, slots=True)
class LakeCutWanted(Ask[None]):
    """A user wants a cut of all tables with everything that is committed below ``after``.

    Without ``partial``, it is refused if a table cannot be part of it.
    """

    name: str
    after: Lsn
    partial: bool


@dataclass(frozen=True, slots=True)
class LakeCutDropped(Ask[None]):
    """A user no longer wants a cut of all tables."""

    name: str


@dataclass(frozen=True, slots=True)
class TagEnded(Message):
    """The cut ``added`` was added to a table and ``removed`` ones were removed, or that failed.

    ``outcome`` has the cuts that the table has now.
    """

    table: TableId
    added: NamedCut | None
    removed: tuple[str, ...]
    outcome: tuple[NamedCut, ...] | BaseException


@dataclass(frozen=True, slots=True)
class JobStarted(Message):
    """A thread has started a job on these tables: a batch, maintenance, a watermark read or a swap."""

    tables: tuple[TableId, ...]
    at: datetime


@dataclass(frozen=True, slots=True)
class WatermarkRead(Message):
    """A table's watermark at the destination, None if the table does not exist there, or the error of the read."""

    table: TableId
    outcome: Watermark | BaseException | None


@dataclass(frozen=True, slots=True)
class ApplyEnded(Message):
    """A batch is durable at the destination, or failed."""

    tables: tuple[TableId, ...]
    outcome: Applied | BaseException


@dataclass(frozen=True, slots=True)
class MaintainEnded(Message):
    """Maintenance of a table is done, or failed."""

    table: TableId
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class TableFailed(Recorded):
    """Capture stages no more changes of the table. It waits until that is recorded."""

    table: TableId
    error: LevadaError


@dataclass(frozen=True, slots=True)
class StorageRead(Message):
    """The storage of the tables at the source. ``snapshot`` is None if it could not be read.

    Before it was read, ``marked`` tables got a mark with their columns in the stream. ``unmarked`` ones got none.
    """

    snapshot: StorageSnapshot | None
    marked: Mapping[TableId, Columns] = field(default_factory=dict)
    unmarked: Mapping[TableId, Unmarked] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SourceRestarted(Recorded):
    """A session begins on a server that was restarted or replaced. Its history is verified up to ``verified_to``.

    Capture waits, so that no table continues from a copy of a history that the source no longer has.
    """

    verified_to: Lsn


@dataclass(frozen=True, slots=True)
class Discovered(Message):
    """The tables of the source that ``config`` selects. ``tables`` is None if they could not be read.

    ``error`` is the reason for that, if it does not pass by itself.
    """

    config: PipelineConfig
    tables: SourceTables | None
    error: LevadaError | None = None


@dataclass(frozen=True, slots=True)
class Reconfigured(Message):
    """A new configuration takes effect."""

    config: PipelineConfig


@dataclass(frozen=True, slots=True)
class ActionsStored(Recorded):
    """Requests for tables are in the store, see `PipelineStore.take_table_actions`."""


@dataclass(frozen=True, slots=True)
class ProgressWanted(Recorded):
    """The progress shall show everything that was reported before."""


@dataclass(frozen=True, slots=True)
class Fatal(Message):
    """An error that ends the pipeline."""

    error: LevadaError
