"""The capture worker of a pipeline, and its reports to the supervisor."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

from levada.capture import CaptureHost, CaptureSettings, CaptureWorker, TableResolver
from levada.capture.column_marks import ColumnMarks
from levada.capture.history import KnownSource, Witnessed
from levada.capture.host import ErrorOf
from levada.errors import LevadaError, Transient
from levada.postgres.ddl import AlteredPartitions, CreatedPartitions, DroppedTables
from levada.runtime.config import PipelineConfig
from levada.runtime.config_ref import ConfigRef
from levada.runtime.inbox import Inbox, Recorded
from levada.runtime.source.record import SourceRecord
from levada.runtime.source.stored_ledger import StoredLedger
from levada.runtime.stages.messages import (
    EarlyFilesRemoved,
    FileStagedEarly,
    SegmentStaged,
    SourceRestarted,
    TableFailed,
)
from levada.runtime.tables.append_record import readable_from, record_streamed
from levada.runtime.tables.catalog_reports import (
    LeavesStreamed,
    PartitionsAltered,
    PartitionsCreated,
    TableAltered,
    TablesDropped,
    TablesUnpublished,
)
from levada.runtime.tables.publication_gaps import read_gaps
from levada.runtime.verifications.messages import CatalogChanged
from levada.schema.masks import MaskKeys
from levada.schema.stored_types import ColumnChoice
from levada.segments.ledger import Ledger
from levada.segments.log import SegmentLog
from levada.segments.memory import MemoryBudget
from levada.stores.interface import PipelineStore
from levada.stores.phases import DataSync

if TYPE_CHECKING:
    from levada.capture.alterations import Alteration
    from levada.postgres.server import ServerIdentity
    from levada.schema import ReplicatedTableSchema
    from levada.segments.files import SegmentFile
    from levada.segments.manifest import Manifest
    from levada.values import Lsn, QualifiedTable, TableId, Witness


class PipelineHost(CaptureHost):
    """Answers capture from the pipeline's configuration and store, and reports to the supervisor.

    The capture thread waits until the supervisor has recorded a report. So the tables concerned are parked before
    anything more is staged or a session begins. A stop of the pipeline ends the wait with Transient ``stopping``.
    ``unidentified`` is set when a table without a replica identity may still be published.
    """

    comments_mask: ClassVar[bool] = True

    def __init__(
        self,
        config_ref: ConfigRef,
        store: PipelineStore,
        log: SegmentLog,
        record: SourceRecord,
        ledger: StoredLedger,
        inbox: Inbox,
        stopping: threading.Event,
        unidentified: threading.Event,
    ) -> None:
        self._config_ref = config_ref
        self._store = store
        self._log = log
        self._record = record
        self._ledger = ledger
        self._inbox = inbox
        self._stopping = stopping
        self._unidentified = unidentified

    def selects(self, table: QualifiedTable) -> bool:
        """Return True if the manifest selects the table."""
        return self._config_ref.selects(table)

    def is_copied(self, table: TableId) -> bool:
        """Return True while the table is copied."""
        return isinstance(self._store.get_table_replication_states().get(table), DataSync)

    def column_choice(self, table: QualifiedTable) -> ColumnChoice:
        """Return the columns that the manifest excludes, and the types and masks that it gives others."""
        return self._config_ref.current.choice(table)

    @property
    def mask_keys(self) -> MaskKeys:
        """The keys of the Secrets that the manifest names."""
        return self._config_ref.current.mask_keys

    def keeps_messages(self) -> bool:
        """Return False if a column of any table is masked."""
        config = self._config_ref.current
        masks = any(table.masks for table in (config.default_table, *config.tables.values()))
        return not (masks or config.mask_comments)

    def require_epoch(self) -> None:
        """Raise StaleEpoch if another process has taken over the pipeline."""
        self._store.require_epoch()

    def append_publication(self, start: Lsn) -> int:
        """Return the recorded second publication, if it can be read from this LSN on."""
        return readable_from(self._store, start)

    def append_streamed(self, oid: int) -> None:
        """Record the second publication, whose tables may be copied then."""
        record_streamed(self._store, oid)

    def session_begins(self) -> None:
        """Report the tables that the publication lacks."""
        for table, gap in read_gaps(self._config_ref.current, self._store).items():
            self.table_failed(table, gap)

    def source_verified(self, server: ServerIdentity, verified_to: Lsn) -> None:
        """Record the server, and report one that was restarted or replaced."""
        if server != self._record.state.identity:
            # First, so that an engine that ends here does not take the new server for verified at its next start.
            self._report(SourceRestarted(verified_to))
        self._record.verified(server)

    def segment_staged(self, manifest: Manifest) -> None:
        """Report a staged segment, without waiting."""
        self._inbox.put(SegmentStaged(manifest))

    def file_staged_early(self, file: SegmentFile, schema: ReplicatedTableSchema) -> None:
        """Report a file of a transaction in progress, without waiting."""
        self._inbox.put(FileStagedEarly(file, schema))

    def early_files_removed(self, files: Sequence[SegmentFile]) -> None:
        """Report files that no segment will have, without waiting."""
        self._inbox.put(EarlyFilesRemoved(tuple(files)))

    def persist_ack(self, lsn: Lsn, witness: Witness | None) -> Callable[[], None]:
        """Return a function that stores the ledger and the position."""
        ends = Ledger(self._log.ledger.ends)

        def persist() -> None:
            # The ledger first, because past this position no segment is evidence of it.
            self._ledger.save(ends)
            if self._log.staging.durable:
                self._record.save_position(lsn, witness)
            else:
                self._record.save_scratch_position(lsn, None if witness is None else Witnessed(lsn, witness))

        return persist

    def table_failed(self, table: TableId, error: LevadaError) -> None:
        """Report a table whose changes cannot be staged any more."""
        self._report(TableFailed(table, error))

    def table_altered(self, alteration: Alteration) -> None:
        """Report a DDL statement on a table."""
        ddl, when = alteration.ddl, (alteration.at, alteration.committed, alteration.xid)
        flags = alteration.truncated, alteration.emptied
        match ddl:
            case DroppedTables():
                self._report(TablesDropped(ddl.tables, *when, alteration.ordinal))
            case CreatedPartitions():
                self._report(PartitionsCreated(ddl.table_id, *when, ddl.leaves))
            case AlteredPartitions():
                self._report(PartitionsAltered(ddl.table_id, *when, ddl.leaves, *flags))
            case _:
                storage = ddl.description.storage
                self._report(TableAltered(ddl.table_id, *when, storage, ddl.casts, *flags, alteration.ordinal))

    def tables_unpublished(self, tables: frozenset[TableId], error: ErrorOf, at: Lsn) -> None:
        """Report tables whose changes a DDL statement, committed at ``at``, took out of the stream."""
        self._report(TablesUnpublished(tables, at, error))

    def leaves_streamed(self, leaves: frozenset[TableId], root: TableId, at: Lsn, xid: int) -> None:
        """Report relations whose rows transaction ``xid``, committed at ``at``, has as those of ``root``."""
        self._report(LeavesStreamed(leaves, root, at, xid))

    def catalog_changed(self) -> None:
        """Request a comparison of the tables with the catalog."""
        self._inbox.put(CatalogChanged())

    def identity_lost(self) -> None:
        """Let the watch over the source look for tables without a replica identity."""
        self._unidentified.set()

    def _report(self, report: Recorded) -> None:
        self._inbox.ask(report).wait(self._check_running)

    def _check_running(self) -> None:
        if self._stopping.is_set():
            message = "the pipeline is stopping. PostgreSQL sends changes that were not staged again"
            raise Transient("stopping", message)


def assemble_worker(
    config: PipelineConfig,
    store: PipelineStore,
    log: SegmentLog,
    known: KnownSource,
    host: CaptureHost,
    epoch: int,
    memory: MemoryBudget,
    marks: ColumnMarks,
) -> CaptureWorker:
    """Return the worker that stages the changes of the pipeline's slot."""
    policy = config.on_unrepresentable
    named = config.publication
    resolver = TableResolver(
        config.source, store, named.name, host,
        policy=policy, marks=marks, append=named.append, slot=config.slot.name,
    )  # fmt: skip
    settings = CaptureSettings(
        config.source,
        config.slot.name,
        config.publication.name,
        config.publication.append,
        batch_bytes=config.batch_bytes,
        fill_s=config.batch_fill_s,
        failover=config.slot.failover,
        heartbeat_s=config.heartbeat_s,
        work_dir=config.work_dir,
        slices=config.limits.slices,
        in_progress=config.limits.in_progress,
    )
    return CaptureWorker(settings, log, resolver, host, epoch=epoch, known=known, memory=memory)
