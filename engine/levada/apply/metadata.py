"""The changes of a table with columns that describe the last change of each row.

The columns are ordinary ones of the destination, and each change has its own values of them. So a destination needs no
rule for them: the last change of a row decides, whatever the batches are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from levada.apply.kept_rows import kept_batch
from levada.pgoutput.events import Begin, Delete, Event, Insert, RelationEvent, Update
from levada.schema import ReplicatedTableSchema
from levada.schema.changes import COMMIT_LSN, COMMIT_TS, OP, XID
from levada.schema.kept_rows import KEPT
from levada.schema.metadata import COLUMNS, READ, RowMetadata, with_metadata
from levada.segments.batch import EventBatch, TableEvents, WrappedEvents
from levada.segments.files import SegmentFile
from levada.segments.projection import layout
from levada.values import MetadataColumn, TableId

_NEEDED: Final = (OP, COMMIT_LSN, COMMIT_TS, XID)


class DescribedEvents(WrappedEvents):
    """The changes of a table with the columns of its ``target.metadata``.

    ``now`` is the commit time of changes that are in no transaction of the stream, those of partitions.
    """

    def __init__(self, inner: TableEvents, now: datetime | None = None) -> None:
        super().__init__(inner)
        self._now = now or datetime.now(UTC)
        metadata = inner.target.metadata
        self.target = inner.target.with_schema(with_metadata(inner.schema, metadata))
        self.versions = tuple(with_metadata(version, metadata) for version in inner.versions)
        self._columns = {COLUMNS[one].name: one for one in metadata.columns}

    def part(self, files: Sequence[SegmentFile], share: tuple[int, int] = (0, 1)) -> DescribedEvents | None:
        """Return the changes in some files of the batch, None if they can be read only in this process."""
        part = self._inner.part(files, share)
        return None if part is None else DescribedEvents(part, self._now)

    def scan(
        self, columns: Sequence[str] | None = None, *, files: Sequence[SegmentFile] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the changes in WAL order, as `TableEvents.scan` does."""
        names = layout(self.schema).names if columns is None else list(columns)
        wanted = [name for name in names if name not in self._columns]
        if len(wanted) < len(names):
            wanted = list(dict.fromkeys((*wanted, *_NEEDED)))
        for rows in self._inner.scan(wanted, files=files):
            arrays = [self._described(rows, n) if n in self._columns else rows.column(n) for n in names]
            yield pa.RecordBatch.from_arrays(arrays, names=names)
        self.nulled = self._inner.nulled

    def _described(self, rows: pa.RecordBatch, name: str) -> pa.Array:
        times = rows.column(COMMIT_TS)
        match self._columns[name]:
            case MetadataColumn.COMMIT_TIME:
                return pc.fill_null(times, pa.scalar(self._now, times.type))
            case MetadataColumn.LSN:
                return rows.column(COMMIT_LSN)
            case MetadataColumn.OPERATION:
                operations = rows.column(OP)
                # A row of a partition that was attached comes as an insert without a transaction.
                read = pc.and_(pc.is_null(times), pc.equal(operations, "I"))
                return pc.if_else(read, READ, pc.if_else(pc.equal(operations, KEPT), "D", operations))
            case MetadataColumn.TRANSACTION_ID:
                return rows.column(XID)
            case MetadataColumn.SOURCE:
                return pa.repeat(pa.scalar(self.target.metadata.source, pa.string()), rows.num_rows)


class DescribedBatch(EventBatch):
    """A batch of tables of which some have columns that describe the last change of each row."""

    def __init__(self, inner: EventBatch) -> None:
        self.tables, self.until, self._inner = inner.tables, inner.until, inner
        changes = {table: inner.changes(table) for table in inner.tables}
        self._changes = {t: DescribedEvents(c) if c.target.metadata.columns else c for t, c in changes.items()}

    def changes(self, table: TableId) -> TableEvents:
        """Return the changes of one table of ``tables``."""
        return self._changes[table]

    def __iter__(self) -> Iterator[Event]:
        """Iterate over the events of all tables, in which the rows have these columns."""
        described = {t: c.target.metadata for t, c in self._changes.items() if c.target.metadata.columns}
        begin: Begin | None = None
        for event in self._inner:
            match event:
                case Begin():
                    begin = event
                    yield event
                case Insert(schema) | Update(schema) | Delete(schema) | RelationEvent(schema):
                    yield event if schema.id not in described else _described(event, described[schema.id], begin)
                case _:
                    yield event


def _described(
    event: Insert | Update | Delete | RelationEvent, metadata: RowMetadata, begin: Begin | None
) -> Insert | Update | Delete | RelationEvent:
    schema: ReplicatedTableSchema = with_metadata(event.schema, metadata)
    if isinstance(event, Delete | RelationEvent):
        return replace(event, schema=schema)
    micros = None if begin is None else begin.commit_ts_us
    values: dict[MetadataColumn, Any] = {
        MetadataColumn.COMMIT_TIME: pa.scalar(micros, pa.timestamp("us", "UTC")).as_py(),
        MetadataColumn.LSN: int(event.commit_lsn),
        MetadataColumn.OPERATION: "I" if isinstance(event, Insert) else "U",
        MetadataColumn.TRANSACTION_ID: None if begin is None else begin.xid,
        MetadataColumn.SOURCE: metadata.source,
    }
    own = {COLUMNS[one].name: values[one] for one in metadata.columns}
    if isinstance(event, Insert):
        return replace(event, schema=schema, row=replace(event.row, values={**event.row.values, **own}))
    return replace(event, schema=schema, row=replace(event.row, values={**event.row.values, **own}))


def stored_form(batch: EventBatch) -> EventBatch:
    """Return the batch as a destination gets it: with the columns that only its tables have, and kept rows."""
    kept = kept_batch(batch)
    describes = any(kept.changes(table).target.metadata.columns for table in kept.tables)
    return DescribedBatch(kept) if describes else kept
