"""The capture worker of a pipeline, and its reports to the supervisor."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from levada.capture import CaptureSettings, CaptureWorker, TableResolver
from levada.capture.column_marks import ColumnMarks
from levada.capture.history import Witnessed
from levada.errors import LevadaError, NeedsOperator, Transient
from levada.postgres.ddl import AlteredPartitions, CreatedPartitions, DroppedTables
from levada.runtime.config_ref import ConfigRef
from levada.runtime.inbox import Inbox, Recorded
from levada.runtime.source.record import SourceRecord
from levada.runtime.source.stored_ledger import StoredLedger
from levada.runtime.stages.messages import SegmentStaged, SourceRestarted, TableFailed
from levada.runtime.tables.publication_gaps import read_gaps
from levada.runtime.tables.storage_journal import (
    PartitionsAltered,
    PartitionsCreated,
    TableAltered,
    TablesDropped,
    TablesUnpublished,
)
from levada.segments.ledger import Ledger
from levada.segments.log import SegmentLog
from levada.segments.memory import MemoryBudget
from levada.stores.interface import PipelineStore

if TYPE_CHECKING:
    from levada.capture.alterations import Alteration
    from levada.postgres.server import ServerIdentity
    from levada.segments.manifest import Manifest
    from levada.values import Lsn, QualifiedTable, TableId, Witness


class CaptureReports:
    """Reports from the capture thread to the supervisor.

    The capture thread waits until the supervisor has recorded a report. So the tables concerned are parked before
    anything more is staged or a session begins. A stop of the pipeline ends the wait with Transient ``stopping``.
    """

    def __init__(self, inbox: Inbox, stopping: threading.Event) -> None:
        self._inbox = inbox
        self._stopping = stopping

    def segment_staged(self, manifest: Manifest) -> None:
        """Report a staged segment, without waiting."""
        self._inbox.put(SegmentStaged(manifest))

    def table_failed(self, table: TableId, error: LevadaError) -> None:
        """Report a table whose changes cannot be staged any more."""
        self._wait_for(TableFailed(table, error))

    def table_altered(self, altered: Alteration) -> None:
        """Report a DDL statement on a table."""
        ddl, when = altered.ddl, (altered.at, altered.committed, altered.xid)
        flags = altered.truncated, altered.emptied
        match ddl:
            case DroppedTables():
                report: Recorded = TablesDropped(ddl.tables, *when, altered.ordinal)
            case CreatedPartitions():
                report = PartitionsCreated(ddl.table_id, *when, ddl.leaves)
            case AlteredPartitions():
                report = PartitionsAltered(ddl.table_id, *when, ddl.leaves, *flags)
            case _:
                storage = ddl.description.storage
                report = TableAltered(ddl.table_id, *when, storage, ddl.casts, *flags, altered.ordinal)
        self._wait_for(report)

    def tables_unpublished(
        self, tables: frozenset[TableId], error: Callable[[QualifiedTable], NeedsOperator], at: Lsn
    ) -> None:
        """Report tables whose changes a DDL statement, committed at ``at``, took out of the stream."""
        self._wait_for(TablesUnpublished(tables, at, error))

    def source_restarted(self, verified_to: Lsn) -> None:
        """Report a session on a server that was restarted or replaced, with its history verified up to an LSN."""
        self._wait_for(SourceRestarted(verified_to))

    def _wait_for(self, report: Recorded) -> None:
        self._inbox.ask(report).wait(self._check_running)

    def _check_running(self) -> None:
        if self._stopping.is_set():
            message = "the pipeline is stopping. PostgreSQL sends changes that were not staged again"
            raise Transient("stopping", message)


def assemble_worker(
    config_ref: ConfigRef,
    store: PipelineStore,
    log: SegmentLog,
    record: SourceRecord,
    ledger: StoredLedger,
    epoch: int,
    reports: CaptureReports,
    catalog_changed: Callable[[], None],
    identity_lost: Callable[[], None],
    memory: MemoryBudget,
    marks: ColumnMarks,
) -> CaptureWorker:
    """Return the worker that stages the changes of the pipeline's slot.

    ``catalog_changed`` is called when the source's catalog should be compared with the tables soon, and
    ``identity_lost`` when a table without a replica identity may still be published.
    """
    config = config_ref.current

    def verify() -> None:
        for table, gap in read_gaps(config_ref.current, store).items():
            reports.table_failed(table, gap)

    def persist_ack(lsn: Lsn, witness: Witness | None) -> Callable[[], None]:
        ends = Ledger(log.ledger.ends)

        def persist() -> None:
            # The ledger first, because past this position no segment is evidence of it.
            ledger.save(ends)
            if log.staging.durable:
                record.save_position(lsn, witness)
            else:
                record.save_scratch_position(lsn, None if witness is None else Witnessed(lsn, witness))

        return persist

    def verified(server: ServerIdentity, start: Lsn) -> None:
        if server != record.state.identity:
            # First, so that an engine that ends here does not take the new server for verified at its next start.
            reports.source_restarted(start)
        record.verified(server)

    resolver = TableResolver(
        config.source,
        store,
        config.publication.name,
        failed=reports.table_failed,
        selects=config_ref.selects,
        excluded_columns=lambda table: config_ref.current.table(table).excluded_columns,
        policy=config.on_unrepresentable,
        altered=reports.table_altered,
        unpublished=reports.tables_unpublished,
        catalog_changed=catalog_changed,
        identity_lost=identity_lost,
        marks=marks,
    )
    settings = CaptureSettings(
        config.source,
        config.slot.name,
        config.publication.name,
        batch_bytes=config.batch_bytes,
        fill_s=config.batch_fill_s,
        failover=config.slot.failover,
        heartbeat_s=config.heartbeat_s,
    )
    return CaptureWorker(
        settings,
        log,
        resolver,
        epoch=epoch,
        segment_staged=reports.segment_staged,
        verify=verify,
        known=record.known_source(log),
        persist_ack=persist_ack,
        verified=verified,
        check=store.require_epoch,
        memory=memory,
    )
