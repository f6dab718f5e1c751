"""The supervisor of a pipeline with its stages, assembled from the parts that a pipeline owns."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from levada.apply.applier import Applier
from levada.capture import CaptureWorker
from levada.capture.column_marks import ColumnMarks
from levada.copy.guard import GUARDS
from levada.destinations.interface import Destination, Ordering
from levada.postgres.idle_connections import IdleReaders, IdleWalsenders
from levada.runtime.config import PipelineConfig
from levada.runtime.config_ref import ConfigRef
from levada.runtime.copies.leaf_reader import LeafReader
from levada.runtime.copies.staged_changes import StagedChanges
from levada.runtime.copies.table_copy import TableCopy
from levada.runtime.erasures.eraser import Eraser
from levada.runtime.inbox import Inbox
from levada.runtime.source.record import SourceRecord
from levada.runtime.source.stored_ledger import StoredLedger
from levada.runtime.stages.ahead import AheadStage
from levada.runtime.stages.apply import ApplyStage
from levada.runtime.stages.arrivals import ArrivalStage
from levada.runtime.stages.capture import CaptureThread
from levada.runtime.stages.copy import CopyStage
from levada.runtime.stages.discovery import Discovery
from levada.runtime.stages.guard import Guard
from levada.runtime.stages.holds import HoldStage
from levada.runtime.stages.lake_cuts import LakeCuts
from levada.runtime.stages.resync import ResyncStage
from levada.runtime.stages.retention import Retention
from levada.runtime.stages.stage import StageParts
from levada.runtime.stages.storage_poller import StoragePoller
from levada.runtime.stages.table_reports import TableReports
from levada.runtime.supervisor import Supervisor
from levada.runtime.tables.guard_patience import Patience
from levada.runtime.tables.registry import TableRegistry
from levada.runtime.tables.requests import table_target
from levada.runtime.tables.source_tables import SourceTables
from levada.runtime.verifications.scheduler import VerificationScheduler
from levada.runtime.verifications.verifier import Verifier
from levada.segments.ledger import Ledger
from levada.segments.log import SegmentLog
from levada.segments.memory import MemoryBudget
from levada.status import Progress, SlotProgress
from levada.stores.interface import PipelineStore
from levada.values import Lsn

if TYPE_CHECKING:
    from levada.copy.tasks import TaskRunner
    from levada.schema import ReplicatedTableSchema, TableTarget


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The parts of a pipeline that every stage may need. ``stopping`` is set once the pipeline ends."""

    config_ref: ConfigRef
    store: PipelineStore
    destination: Destination
    tasks: TaskRunner
    epoch: int
    stopping: threading.Event
    inbox: Inbox
    memory: MemoryBudget
    patience: Patience


@dataclass(frozen=True, slots=True)
class CaptureParts:
    """Capture with its segments, its position at the source, and the ledger that outlives the segments."""

    thread: CaptureThread
    worker: CaptureWorker
    log: SegmentLog
    record: SourceRecord
    ledger: StoredLedger
    marks: ColumnMarks


@dataclass(frozen=True, slots=True)
class AssembledSupervisor:
    """A supervisor that has not begun, and the parts of it that other threads call."""

    supervisor: Supervisor
    discovery: Discovery
    storage_poller: StoragePoller
    verifier: Verifier
    eraser: Eraser
    scheduler: VerificationScheduler


def assemble_supervisor(
    around: Surroundings,
    capture: CaptureParts,
    *,
    slot: Callable[[], SlotProgress],
    discover: Callable[[PipelineConfig], SourceTables],
    publish: Callable[[Supervisor], None],
    progress: Callable[[], Progress],
) -> AssembledSupervisor:
    """Return a supervisor with new stages.

    ``slot`` returns the newest sample of the slot, ``discover`` reads the source's tables, ``publish`` publishes the
    supervisor's progress, and ``progress`` returns what was published.
    """
    config_ref, store, destination, inbox = around.config_ref, around.store, around.destination, around.inbox
    config, log = config_ref.current, capture.log
    together = destination.capabilities.ordering is Ordering.PIPELINE
    turn: AbstractContextManager[object] = threading.Lock() if together else nullcontext()
    changes = StagedChanges(log.staging, inbox)
    sessions = IdleReaders(config.source, GUARDS)
    copier = TableCopy(
        config_ref,
        store,
        destination,
        around.tasks,
        around.epoch,
        sessions,
        turn,
        changes=changes,
        walsenders=IdleWalsenders(config.source),
    )

    def target(schema: ReplicatedTableSchema) -> TableTarget:
        return table_target(store, config_ref.current, schema)

    def resends_from() -> Lsn | None:
        # The slot of a standby that is promoted may be behind that of its former primary.
        return None if config_ref.current.slot.failover else slot().restart_lsn

    policy = config.on_unrepresentable
    applier = Applier(
        config.name,
        around.epoch,
        log.staging,
        store,
        target,
        destination,
        policy,
        around.stopping,
        turn,
        around.memory,
        config.limits.batches,
    )
    registry = TableRegistry(
        config_ref, store, destination, capture.thread.reopen, capture.thread.choose_columns, Ledger(log.ledger.ends)
    )
    parts = StageParts(config_ref, registry, store, destination, inbox)
    TableReports(parts)
    storage_poller = StoragePoller(parts, capture.marks)
    verifier = Verifier(config_ref, store, destination, inbox, around.epoch, around.stopping)
    eraser = Eraser(config_ref, store, destination, inbox, around.epoch, around.stopping, capture.log, verifier.turns)
    resyncs = ResyncStage(parts, copier, applier, verifier)
    arrivals = ArrivalStage(parts, LeafReader(config_ref, store, sessions))
    discovery = Discovery(parts, discover)
    supervisor = Supervisor(
        config_ref,
        registry,
        capture=capture.thread,
        copies=CopyStage(parts, copier),
        arrivals=arrivals,
        applies=ApplyStage(parts, applier, arrivals),
        ahead=AheadStage(parts, applier),
        holds=HoldStage(parts),
        lake_cuts=LakeCuts(parts, around.epoch, capture.thread),
        resyncs=resyncs,
        discovery=discovery,
        storage_poller=storage_poller,
        guard=Guard(config_ref, store, registry, log.staging, slot, around.patience, resyncs),
        retention=Retention(
            registry, log, store, capture.record, capture.worker.applied, capture.ledger.save, resends_from
        ),
        check=around.tasks.check,
        publish=publish,
        inbox=inbox,
    )
    scheduler = VerificationScheduler(config_ref, progress, verifier)
    return AssembledSupervisor(supervisor, discovery, storage_poller, verifier, eraser, scheduler)
