"""Batches of changes whose reading fails, or ends the process, at a given point."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from levada.pgoutput.events import Event
from levada.segments import StagedBatch
from levada.segments.batch import EventBatch, TableEvents
from levada.segments.files import SegmentFile
from levada.values import TableId


class FailingBatch(EventBatch):
    """A batch that calls ``fail`` when so many Arrow batches or events were read, or after the last one.

    ``at`` is the number for the Arrow batches of each table, and for the events.
    """

    def __init__(self, batch: StagedBatch, at: int, fail: Callable[[], None]) -> None:
        self.tables, self.until = batch.tables, batch.until
        self._batch, self._at, self._fail = batch, at, fail

    def changes(self, table: TableId) -> TableEvents:
        """Return the changes of one table, whose reading fails."""
        return _FailingEvents(self._batch.changes(table), self._at, self._fail)

    def __iter__(self) -> Iterator[Event]:
        seen = 0
        for seen, event in enumerate(self._batch):
            if seen == self._at:
                self._fail()
            yield event
        if seen < self._at:
            self._fail()


class _FailingEvents(TableEvents):
    def __init__(self, events: TableEvents, at: int, fail: Callable[[], None]) -> None:
        self.target, self.versions, self.files = events.target, events.versions, events.files
        self.truncates, self.after, self.until, self.limits = (
            events.truncates,
            events.after,
            events.until,
            events.limits,
        )
        self._events, self._at, self._fail = events, at, fail

    def scan(
        self, columns: Sequence[str] | None = None, *, files: Sequence[SegmentFile] | None = None
    ) -> Iterator[pa.RecordBatch]:
        seen = 0
        for seen, batch in enumerate(self._events.scan(columns, files=files)):
            if seen == self._at:
                self._fail()
            yield batch
        if seen < self._at:
            self._fail()
