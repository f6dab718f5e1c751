"""The rows that a shadow copy takes over from its table, because the source does not have them any more.

The table may trail its shadow copy. A row of the table whose key the shadow copy does not have was deleted before the
snapshot of the copy, because the shadow copy keeps all later ones itself. So it is kept, and marked if the table has
marks and did not see the delete yet. A shadow copy that takes a part of the rows leaves out others that the source
still has. Of such a table the source is asked for the keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

from levada.copy.source_keys import SourceKeys
from levada.copy.stored_rows import marked
from levada.destinations import Destination
from levada.destinations.answers import require_flag
from levada.destinations.regions import deciding_columns, is_in
from levada.pgoutput.events import Event
from levada.schema import TableTarget
from levada.schema.changes import COMMIT_LSN, COMMIT_TS, OP, ORDINAL
from levada.schema.metadata import ReadMoment
from levada.schema.partitions import Region
from levada.segments.batch import EventBatch, TableEvents
from levada.segments.files import SegmentFile
from levada.segments.projection import layout
from levada.values import Deletes, Lsn, TableId, Watermark


def carry_over(
    destination: Destination,
    target: TableTarget,
    mark: Watermark,
    region: Region | None = None,
    at_source: SourceKeys | None = None,
) -> bool | None:
    """Write the kept rows of a table to its shadow copy, which has all changes below ``mark``.

    ``region`` has the rows of partitions that are kept. If the table keeps no others, only these are carried over.
    ``at_source`` is for a copy that does not take all rows of the source. Rows whose keys it has are not carried over.

    Return True if it has them now. Then swap it in, or make it again. Return None if there are none, and False if the
    shadow copy cannot take them and must be made again.
    """
    if target.deletes is Deletes.APPLY and region is None:
        return None
    batch = CarriedRows(destination, target, mark.lsn, region, at_source)
    if not any(rows.num_rows for rows in batch.changes(target.id).scan()):
        return None
    write = destination.write_replacement_events
    return require_flag(write(batch, Watermark(mark.pipeline, mark.epoch, batch.until)), write)


class _CarriedEvents(TableEvents):
    """The kept rows of a table as inserts at one LSN."""

    def __init__(
        self,
        destination: Destination,
        target: TableTarget,
        lsn: Lsn,
        region: Region | None,
        at_source: SourceKeys | None,
    ) -> None:
        self._destination = destination
        self._region = region
        self._at_source = at_source
        self._moment = ReadMoment(lsn, datetime.now(UTC))
        self.target, self.versions, self.files, self.truncates = target, (target.schema,), (), ()
        self.after, self.until = lsn, Lsn(lsn + 1)

    def scan(
        self, columns: Sequence[str] | None = None, *, files: Sequence[SegmentFile] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows."""
        form = layout(self.schema)
        chosen = form if columns is None else pa.schema([form.field(name) for name in columns])
        for kept in self._destination.rows_left_out(self.target):
            rows = self._chosen(kept)
            known = {
                **dict(zip(rows.schema.names, rows.columns, strict=True)),
                OP: pa.repeat(pa.scalar("I"), rows.num_rows),
                COMMIT_LSN: pa.repeat(pa.scalar(int(self.after), pa.int64()), rows.num_rows),
                ORDINAL: pa.repeat(pa.scalar(0, pa.int64()), rows.num_rows),
                COMMIT_TS: pa.repeat(pa.scalar(self._moment.at, form.field(COMMIT_TS).type), rows.num_rows),
            }
            arrays = [known[f.name] if f.name in known else pa.nulls(rows.num_rows, f.type) for f in chosen]
            yield pa.RecordBatch.from_arrays(arrays, schema=chosen)

    def _chosen(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows that are kept, with the mark of those that need one."""
        region, deletes = self._region, self.target.deletes
        if self._at_source is not None:
            rows = rows.filter(pc.invert(self._at_source.has(rows)))
        if deletes is Deletes.IGNORE:
            return rows
        if region is None or not self.target.keeps_partitions:
            return marked(rows, self._moment) if deletes is Deletes.MARK else rows.slice(0, 0)
        found = {c.attnum: rows.column(c.name) for c in deciding_columns(region, self.schema)}
        of_partitions = is_in(region, self.schema, found, rows.num_rows)
        kept = rows.filter(of_partitions)
        if deletes is Deletes.APPLY:
            return kept
        others = marked(rows.filter(pc.invert(of_partitions)), self._moment)
        return pa.Table.from_batches([kept, others]).combine_chunks().to_batches()[0] if rows.num_rows else rows


class CarriedRows(EventBatch):
    """A batch with the kept rows of one table. It cannot be read as events."""

    def __init__(
        self,
        destination: Destination,
        target: TableTarget,
        lsn: Lsn,
        region: Region | None = None,
        at_source: SourceKeys | None = None,
    ) -> None:
        self.tables = (target.id,)
        self._events = _CarriedEvents(destination, target, lsn, region, at_source)
        self.until = self._events.until

    def changes(self, table: TableId) -> TableEvents:
        """Return the rows of the table."""
        return self._events

    def __iter__(self) -> Iterator[Event]:
        raise NotImplementedError("a destination with the capability keeps_deleted reads changes as Arrow data")
