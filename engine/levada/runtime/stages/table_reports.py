"""The registry's record of what capture and the jobs report."""

from __future__ import annotations

from levada import codes
from levada.postgres.membership import streamed_as_root
from levada.runtime.stages.messages import Fatal, JobStarted, SegmentStaged, SourceRestarted, TableFailed
from levada.runtime.stages.stage import Stage, StageParts
from levada.runtime.tables.catalog_reports import (
    LeavesStreamed,
    PartitionsAltered,
    PartitionsCreated,
    TableAltered,
    TablesDropped,
    TablesUnpublished,
)
from levada.runtime.tables.publication_gaps import record_missing_publication


class TableReports(Stage):
    """Records reports in the registry, before the other stages handle them."""

    def __init__(self, parts: StageParts) -> None:
        super().__init__(parts)
        registry, inbox = parts.registry, parts.inbox
        inbox.on(SegmentStaged, lambda report: registry.positions.segment_staged(report.manifest))
        inbox.on(SourceRestarted, lambda report: registry.positions.source_restarted(report.verified_to))
        inbox.on(TablesDropped, lambda report: registry.storage.tables_dropped(registry.tables.values(), report))
        inbox.on(Fatal, self._failed)
        inbox.on(JobStarted, self._job_started)
        inbox.on(TableFailed, self._table_failed)
        inbox.on(TablesUnpublished, self._tables_unpublished)
        inbox.on(LeavesStreamed, self._leaves_streamed)
        inbox.on(TableAltered, self._table_altered)
        inbox.on(PartitionsCreated, self._table_altered)
        inbox.on(PartitionsAltered, self._table_altered)

    def _failed(self, report: Fatal) -> None:
        # The first error is the cause: capture finds a slot missing that the guard has dropped.
        self._registry.fail(self._registry.fatal or report.error)
        if report.error.code == codes.PUBLICATION_MISSING:
            record_missing_publication(self._store)

    def _job_started(self, report: JobStarted) -> None:
        for table in report.tables:
            self._registry.tables[table].started(report.at)

    def _table_failed(self, report: TableFailed) -> None:
        if (record := self._registry.tables.get(report.table)) is not None:
            self._registry.phases.found_gap(record, report.error)

    def _table_altered(self, report: TableAltered | PartitionsCreated | PartitionsAltered) -> None:
        if (record := self._registry.tables.get(report.table)) is not None:
            self._registry.storage.table_altered(record, report)

    def _tables_unpublished(self, report: TablesUnpublished) -> None:
        for table in report.tables & self._registry.tables.keys():
            self._registry.storage.table_unpublished(self._registry.tables[table], report)

    def _leaves_streamed(self, report: LeavesStreamed) -> None:
        storage, tables = self._registry.storage, self._registry.tables
        if (root := tables.get(report.root)) is not None:
            storage.leaves_streamed(root, report)
        unpublished = TablesUnpublished(report.leaves, report.at, streamed_as_root)
        for table in report.leaves & tables.keys():
            storage.table_unpublished(tables[table], unpublished)
