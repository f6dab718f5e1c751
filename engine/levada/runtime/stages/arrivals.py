"""The rows of attached partitions. They are read while the stream is staged, and applied with its changes."""

from __future__ import annotations

import shutil
from itertools import count
from typing import Final

from levada.apply.moves import LeafRows, MovePlan
from levada.errors import NeedsOperator
from levada.runtime.copies.leaf_reader import LeafReader
from levada.runtime.job import Job
from levada.runtime.stages.messages import LeafRead, Reading
from levada.runtime.stages.stage import Stage, StageParts
from levada.runtime.tables.phases import STREAMING
from levada.runtime.tables.record import TableRecord
from levada.schema.partitions import Arrival
from levada.threads import MarkedPool
from levada.values import Lsn, TableId, resync_command

_AT_ONCE: Final = 2


class ArrivalStage(Stage):
    """Reads the rows of arrivals, and plans the batches with moves. A process that ended reads them again."""

    def __init__(self, parts: StageParts, reader: LeafReader) -> None:
        super().__init__(parts)
        self._reader = reader
        self._pool = MarkedPool(_AT_ONCE, "levada-leaves")
        self._readings: dict[TableId, dict[Arrival, Reading]] = {}
        self._folder = parts.config_ref.current.work_dir / "leaves"
        self._names = count()
        shutil.rmtree(self._folder, ignore_errors=True)
        parts.inbox.on(LeafRead, self._ended)

    def start(self, *, paused: bool = False) -> None:
        """Start to read what has arrived. While ``paused``, nothing new is read."""
        arriving = self._registry.backlog.arriving
        for table in self._readings.keys() | arriving.keys():
            record = self._registry.tables.get(table)
            readings = self._readings.setdefault(table, {})
            if record is None or record.busy is not Job.MOVE:
                self._drop(readings, arriving.get(table, frozenset()))
            if record is not None and not record.busy and _streams(record):
                self._park(record, readings)
            if record is not None and not paused and _streams(record):
                for arrival in arriving.get(table, frozenset()) - readings.keys():
                    if arrival.leaves:
                        self._read(record, arrival)
            if not readings:
                del self._readings[table]

    def _drop(self, readings: dict[Arrival, Reading], wanted: frozenset[Arrival]) -> None:
        """Forget the rows that are applied or no longer wanted."""
        for arrival in readings.keys() - wanted:
            reading = readings.pop(arrival)
            reading.cancelled.set()
            if isinstance(reading.outcome, LeafRows):
                reading.outcome.remove()

    def _park(self, record: TableRecord, readings: dict[Arrival, Reading]) -> None:
        """Park the table if its arrivals cannot be read. A retry reads them again."""
        for arrival, reading in list(readings.items()):
            if isinstance(reading.outcome, BaseException):
                del readings[arrival]
                self._registry.phases.park(record, reading.outcome)
                return
            if isinstance(reading.outcome, LeafRows) and self._is_refuted(arrival, reading.outcome):
                why = "a partition that was attached is gone, and the stream does not show when"
                error = NeedsOperator(
                    "partition_changed", f"table {record.name}: {why}", hint=resync_command(record.name)
                )
                self._registry.phases.park_until_resync(record, error)
                return

    def _is_refuted(self, arrival: Arrival, rows: LeafRows) -> bool:
        """Return True if a leaf left the table before the snapshot, and its arrival is still expected at that LSN."""
        return not arrival.leaves <= rows.counts.keys() and self._registry.staged_lsn >= rows.lsn

    def _read(self, record: TableRecord, arrival: Arrival) -> None:
        reading = self._readings[record.id][arrival] = Reading()
        settings, folder = self._registry.handled.settings(record), self._folder / str(next(self._names))
        table, name = record.id, record.name

        def run() -> None:  # in a pool
            outcome: LeafRows | BaseException
            try:
                outcome = self._reader.read(table, name, settings, arrival.leaves, folder, reading.cancelled)
            except BaseException as error:
                shutil.rmtree(folder, ignore_errors=True)
                outcome = error
            self._inbox.put(LeafRead(table, arrival, reading, outcome))

        self._pool.submit(run)

    def _ended(self, report: LeafRead) -> None:
        """Keep what was read, unless it is no longer wanted."""
        if self._readings.get(report.table, {}).get(report.arrival) is report.reading:
            report.reading.outcome = report.outcome
        elif isinstance(report.outcome, LeafRows):
            report.outcome.remove()

    def plan(self, table: TableId) -> MovePlan | None:
        """Return the next batch with moves of a table, None if what it needs is not there yet.

        An arrival brings the table to the LSN of its snapshot. So all moves below that LSN are in the batch.
        """
        backlog, readings = self._registry.backlog, self._readings.get(table, {})
        moves = backlog.moves(table)
        until, rows = Lsn(moves[0].at + 1), dict[Arrival, LeafRows]()
        while True:
            chosen, end = tuple(m for m in moves if m.at < until), until
            for arrival in chosen:
                if not isinstance(arrival, Arrival):
                    continue
                end = max(end, arrival.until)
                if arrival.leaves and arrival not in rows:
                    found = readings.get(arrival)
                    if found is None or not isinstance(found.outcome, LeafRows):
                        return None
                    rows[arrival] = found.outcome
            end = max([end, *(found.lsn for found in rows.values())])
            if end == until:
                break
            until = end
        held = backlog.held_at(table)
        if self._registry.staged_lsn < until or (held is not None and held < until):
            return None
        return MovePlan(chosen, rows, until)

    def close(self) -> None:
        """Cancel the readings, and wait for them."""
        for readings in self._readings.values():
            for reading in readings.values():
                reading.cancelled.set()
        self._pool.shutdown(cancel_futures=True)


def _streams(record: TableRecord) -> bool:
    return record.phase.name in STREAMING and not record.suspended and not record.resync.has_copy


def _gone(record: TableRecord) -> NeedsOperator:
    return NeedsOperator(
        "partition_changed",
        f"table {record.name}: a partition that was attached is gone, and the stream does not show when",
        hint=resync_command(record.name),
    )
