"""Replication through one slot: capture and the supervisor, from the preparation of the source until both end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from levada.capture import CaptureWorker
from levada.capture.column_marks import ColumnMarks
from levada.destinations.interface import Destination
from levada.errors import LevadaError, SlotLost
from levada.postgres.kept_sessions import SESSIONS
from levada.runtime.config import PipelineConfig
from levada.runtime.erasures.eraser import Eraser
from levada.runtime.source.mask_comments import comments_now
from levada.runtime.source.preparation import discover, prepare_source
from levada.runtime.source.record import SourceRecord
from levada.runtime.source.source_watch import SourceWatch
from levada.runtime.source.stored_ledger import StoredLedger
from levada.runtime.source.table_sizes import TableSizes
from levada.runtime.stages.capture import CaptureThread
from levada.runtime.stages.capture_assembly import PipelineHost, assemble_worker
from levada.runtime.stages.storage_poller import StoragePoller
from levada.runtime.supervisor import Supervisor
from levada.runtime.supervisor_assembly import CaptureParts, Surroundings, assemble_supervisor
from levada.runtime.tables.places import check_sources, refuse_collisions
from levada.runtime.tables.requests import last_copy_settings
from levada.runtime.tables.source_tables import SourceTables
from levada.runtime.tables.startup_requests import apply_manifest_resyncs
from levada.runtime.verifications.scheduler import VerificationScheduler
from levada.runtime.verifications.verifier import Verifier
from levada.segments.log import SegmentLog
from levada.segments.manifest import Manifest
from levada.segments.staging import Staging
from levada.status import Progress, SlotProgress
from levada.stores.interface import PipelineStore
from levada.stores.phases import DataSync, Init

if TYPE_CHECKING:
    from levada.postgres.catalog import StreamedTable
    from levada.runtime.source.preparation import SourceState
    from levada.values import PipelineOwner


@dataclass(frozen=True, slots=True)
class Replication:
    """Capture and the supervisor of one slot. They run once. After the loss of the slot a new one takes their place."""

    capture: CaptureThread
    worker: CaptureWorker
    supervisor: Supervisor
    storage_poller: StoragePoller
    verifier: Verifier
    eraser: Eraser
    scheduler: VerificationScheduler
    watch: SourceWatch

    def start(self) -> None:
        """Start to capture and to verify. `run` does the rest in the caller's thread."""
        self.capture.start()
        self.watch.start()
        self.scheduler.start()

    def run(self, ending: Callable[[], None]) -> None:
        """Run the supervisor until it ends, call ``ending``, and end the other threads."""
        self.supervisor.run()
        try:
            ending()
        finally:
            self.capture.stop()
            self.watch.stop()
            self.scheduler.stop()
            self.supervisor.drain()


@dataclass(frozen=True, slots=True)
class PipelineCalls:
    """Functions of the pipeline that its replication calls.

    ``slot`` returns the newest sample of the slot, ``publish`` publishes the supervisor's progress, ``progress``
    returns the published progress, and ``waiting`` publishes the error that the start waits for.
    """

    slot: Callable[[], SlotProgress]
    publish: Callable[[Supervisor], None]
    progress: Callable[[], Progress]
    waiting: Callable[[LevadaError | None], None]


def prepare_replication(
    around: Surroundings, staging: Staging, owner: PipelineOwner | None, calls: PipelineCalls, lost: SlotLost | None
) -> Replication:
    """Verify the source, and return capture and the supervisor, which are not started. See `prepare_source`."""
    config, store = around.config_ref.current, around.store
    log, record = SegmentLog(staging, config.name), SourceRecord(store)

    def check_tables(tables: tuple[StreamedTable, ...]) -> None:
        _check_tables(config, store, around.destination, tables)

    sizes = TableSizes()
    source = prepare_source(
        config, store, record, log, check_tables, lost, owner=owner, waiting=calls.waiting, sizes=sizes
    )
    ledger = StoredLedger(store, durable=staging.durable)
    manifests = _open_log(log, ledger, store, source)
    inbox = around.inbox
    marks, identity_lost = ColumnMarks(), threading.Event()
    host = PipelineHost(around.config_ref, store, log, record, ledger, inbox, around.stopping, identity_lost)
    known = record.known_source(log)
    worker = assemble_worker(config, store, log, known, host, around.epoch, around.memory, marks)
    capture = CaptureThread(worker, inbox)

    def discover_tables(config: PipelineConfig) -> SourceTables:
        with SESSIONS.session(config.source, "discover") as connection:
            found = discover(config, connection, store, owner, sizes)
        if found.append_waits:
            capture.reopen()
        return replace(found, comments=comments_now(config))

    assembled = assemble_supervisor(
        around,
        CaptureParts(capture, worker, log, record, ledger, marks),
        slot=calls.slot,
        discover=discover_tables,
        publish=calls.publish,
        progress=calls.progress,
    )
    assembled.supervisor.adopt(source.found, manifests, resync=source.resync)
    return Replication(
        capture,
        worker,
        assembled.supervisor,
        assembled.storage_poller,
        assembled.verifier,
        assembled.eraser,
        assembled.scheduler,
        SourceWatch(around.config_ref, store.require_epoch, assembled.discovery.soon, identity_lost, inbox),
    )


def _check_tables(
    config: PipelineConfig, store: PipelineStore, destination: Destination, tables: tuple[StreamedTable, ...]
) -> None:
    """Apply the requests made while the engine was stopped.

    Raise NeedsOperator for tables with the same target, and ``destination_is_source`` if the destination's tables are
    selected and no table was copied yet. Later, only the tables that would be replicated into themselves are parked.
    """
    apply_manifest_resyncs(config, store, tables)
    refuse_collisions(config, store, destination.target_name, tables)
    if any(not isinstance(phase, Init | DataSync) for phase in store.get_table_replication_states().values()):
        return
    known = {t.id: (t.name, last_copy_settings(store.get_table_controls(t.id))) for t in tables}
    check_sources(config, destination, known)


def _open_log(log: SegmentLog, ledger: StoredLedger, store: PipelineStore, source: SourceState) -> tuple[Manifest, ...]:
    """Load the log's ledger, and return the segments that tables need: none if every table is copied again."""
    log.collect_garbage(store.require_epoch)
    manifests = log.list()
    if source.resync:
        # Checked after the list, so that the list has no segment of a newer driver.
        store.require_epoch()
        for manifest in manifests:
            log.remove(manifest)
        manifests = ()
        ledger.forget()
    known = store.get_table_replication_states().keys() | {t.id for t in source.tables}
    was_scratch = log.staging.durable and not ledger.exists
    if was_scratch:
        log.staging.sync(log.pipeline)
    log.ledger = ledger.load(manifests, known)
    if was_scratch:
        ledger.save(log.ledger)
    return manifests
