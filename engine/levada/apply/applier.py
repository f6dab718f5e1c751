"""Applies one batch, of one table or of all tables, to the destination."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Final

from levada.apply.metadata import stored_form
from levada.apply.moves import MoveBatch, MovePlan, stored_batch
from levada.destinations import Destination
from levada.destinations.answers import perform, require_durability, require_flag
from levada.errors import NeedsOperator
from levada.schema import ReplicatedTableSchema, TableTarget
from levada.segments.batch import DurabilityRequest
from levada.segments.files import SegmentFile
from levada.segments.limits import BatchLimits
from levada.segments.manifest import Manifest
from levada.segments.memory import BATCH_BYTES, MemoryBudget, batch_size
from levada.segments.projection import check_old_keys
from levada.segments.staged import StagedBatch, TableStart, other_key
from levada.segments.staging import Staging
from levada.stores.interface import SchemaStore
from levada.values import Deletes, Durability, Lsn, OnUnrepresentable, SnapshotId, TableId, TableMode, Watermark

_log = logging.getLogger(__name__)

_RETRY_INTERVAL_S: Final = 0.5
_LARGE: Final = 100_000
"""The changes of a batch from which its tasks are logged."""


@dataclass(frozen=True, slots=True)
class Applied:
    """The result of a batch. Every change below ``until`` is durable.

    ``unrepresentable`` is the number of values stored as NULL. ``seconds`` is the duration. ``tasks`` is the number of
    tasks in other processes that wrote it.
    """

    until: Lsn
    rows: int
    unrepresentable: int
    seconds: float
    tasks: int = 0


@dataclass(frozen=True, slots=True)
class AppliedToShadow:
    """The result of a batch for a shadow copy, which now has every change below ``until`` in the version ``schema``."""

    until: Lsn
    schema: ReplicatedTableSchema


@dataclass(frozen=True, slots=True)
class Applier:
    """Applies segments of one pipeline. Several threads may use it, but only one at a time for the same table."""

    pipeline: str
    epoch: int
    staging: Staging
    schemas: SchemaStore
    targets: Callable[[ReplicatedTableSchema], TableTarget]
    """Returns the target of a table under the settings of its last copy."""
    destination: Destination
    policy: OnUnrepresentable
    stopping: threading.Event
    turn: AbstractContextManager[object] = field(default_factory=nullcontext)
    """Held while a batch is written. With Ordering.PIPELINE it is a lock, so that there is one call at a time."""
    memory: MemoryBudget = field(default_factory=MemoryBudget)
    limits: BatchLimits = field(default_factory=BatchLimits)

    def run(self, positions: Mapping[TableId, Lsn], manifests: Sequence[Manifest], until: Lsn | None = None) -> Applied:
        """Apply the manifests' changes to these tables, each from its position on. Return when they are durable.

        Changes from ``until`` on, inclusive, are left out. None stands for the end of the last manifest.

        Raise the destination's errors, NeedsOperator ``key_changed``, and InterruptedError if the pipeline stops before
        an accepted batch is durable. The positions then do not move, so that the batch is applied again.
        """
        began = time.monotonic()
        until = manifests[-1].end_lsn if until is None else until
        starts = [self._start(self.schema(table, after), after) for table, after in positions.items()]
        until = self._end_of_key(manifests, starts, until)
        staged = StagedBatch(self.staging, manifests, starts, until, self.policy, self.limits)
        self._check_keys(staged)
        mark = Watermark(self.pipeline, self.epoch, until)
        write = self.destination.write_events
        size = batch_size(manifests, staged.tables)
        with self.turn, self.memory.batch(size, self.stopping):
            batch = stored_batch(staged, self.destination)
            if require_durability(write(batch, mark), write) is not Durability.DURABLE:
                wait_durable(self.destination, [batch.changes(t).target for t in batch.tables], mark, self.stopping)
        rows = sum(f.rows for m in manifests for table in positions for f in m.files_of(table))
        nulled = sum(batch.changes(table).nulled for table in positions)
        tasks = sum(batch.changes(table).tasks for table in positions)
        seconds = time.monotonic() - began
        if tasks and rows >= _LARGE:
            names = ", ".join(str(s.target.schema.name) for s in starts)
            _log.info("%s: %d tasks applied %d changes in %.1f s", names, tasks, rows, seconds)
        return Applied(until, rows, nulled, seconds, tasks)

    def run_moves(self, table: TableId, after: Lsn, manifests: Sequence[Manifest], plan: MovePlan) -> Applied:
        """Apply changes to a table, together with all moves that are among them.

        ``manifests`` may be empty. The table has every change from before the first move's transaction. Raise the
        errors of `run`, and NeedsOperator ``partition_changed`` if the rows cannot be moved.
        """
        began = time.monotonic()
        until = max(plan.until, self._end_of(table, manifests, plan.moves[-1].at))
        start = self._start(self.schema(table, after), after)
        staged = StagedBatch(self.staging, manifests, [start], until, self.policy, self.limits)
        self._check_keys(staged)
        mark = Watermark(self.pipeline, self.epoch, until)
        write = self.destination.write_events
        size = BATCH_BYTES if plan.rows else batch_size(manifests, staged.tables)
        with self.turn, self.memory.batch(size, self.stopping):
            batch = stored_form(MoveBatch(staged, plan, self.destination))
            if require_durability(write(batch, mark), write) is not Durability.DURABLE:
                wait_durable(self.destination, [batch.changes(table).target], mark, self.stopping)
        events = batch.changes(table)
        nulled = events.nulled + sum(read.nulled for read in plan.rows.values())
        at = plan.moves[0].at
        _log.info("%s: %d changes with partitions that come or go at %s", events.schema.name, events.rows, at)
        return Applied(until, events.rows, nulled, time.monotonic() - began)

    def fold_ahead(self, table: TableId, after: Lsn, file: SegmentFile, schema: ReplicatedTableSchema) -> None:
        """Let the destination do its part of a batch with a file of a transaction in progress, of version ``schema``.

        ``after`` is the table's position. Do nothing for a table that gets its changes in another form than they are
        staged. Raise the errors of the destination.
        """
        manifest = Manifest.of_file(self.pipeline, self.epoch, file, schema)
        start = self._start(self.schema(table, after), after)
        staged = StagedBatch(self.staging, [manifest], [start], manifest.end_lsn, self.policy, self.limits)
        self._check_keys(staged)
        if stored_batch(staged, self.destination) is not staged:
            return
        with self.memory.batch(batch_size([manifest], [table]), self.stopping):
            perform(self.destination.fold_ahead, staged.changes(table))

    def _end_of_key(self, manifests: Sequence[Manifest], starts: Sequence[TableStart], until: Lsn) -> Lsn:
        """Return the end of a batch in which one key identifies the rows, where a destination can take another one.

        Several tables of one batch have one end, which is not that of a key of one of them.
        """
        if len(starts) > 1:
            return until
        [start] = starts
        if self.destination.effective_mode(start.target) is not TableMode.UPSERT:
            return until
        change = other_key(manifests, start, until)
        return until if change is None else change

    @staticmethod
    def _end_of(table: TableId, manifests: Sequence[Manifest], at: Lsn) -> Lsn:
        """Return the end of a batch with the transaction that is committed at an LSN.

        A later one of several versions of the transaction has a higher number than its commit. The next batch begins
        with the newest version below its start.
        """
        mine = (r for m in manifests for r in m.relations if r.schema.id == table and r.commit_lsn == at)
        return Lsn(max([at, *(r.schema.snapshot_id for r in mine)]) + 1)

    def run_shadow(
        self, schema: ReplicatedTableSchema, after: Lsn, manifests: Sequence[Manifest], until: Lsn | None = None
    ) -> AppliedToShadow | None:
        """Apply a table's changes from ``after`` on to its shadow copy, which has the version ``schema``.

        ``until`` is that of `run`. Return None if the shadow copy cannot take them and must start again, as it must if
        another key identifies the rows for a while. Raise the destination's errors.
        """
        until = manifests[-1].end_lsn if until is None else until
        start = self._start(schema, after)
        batch = StagedBatch(self.staging, manifests, [start], until, self.policy, self.limits)
        self._check_keys(batch)
        changes = batch.changes(schema.id)
        if set(changes.schema.key) != set(schema.key):
            # Its rows are found by the key with which they were copied, also if the table gets that one again later.
            return None
        if start.target.deletes is Deletes.MARK and changes.truncates:
            # The rows that it marks are those of the table, and a copy from after the TRUNCATE keeps these.
            return None
        mark = Watermark(self.pipeline, self.epoch, until)
        write = self.destination.write_replacement_events
        with self.memory.batch(batch_size(manifests, batch.tables), self.stopping):
            if not require_flag(write(stored_form(batch), mark), write):
                return None
        return AppliedToShadow(until, changes.schema)

    def _start(self, schema: ReplicatedTableSchema, after: Lsn) -> TableStart:
        """Return the start of a table in a batch, with the columns that the source has."""
        return TableStart(self.targets(schema).with_schema(schema), after)

    def _check_keys(self, batch: StagedBatch) -> None:
        for table in batch.tables:
            changes = batch.changes(table)
            if self.destination.effective_mode(changes.target) is TableMode.UPSERT:
                check_old_keys(changes.schema, changes.written.values())

    def schema(self, table: TableId, after: Lsn) -> ReplicatedTableSchema:
        """Return the version of the table below ``after``, the position at which the batch begins.

        A version that begins exactly at ``after`` is a change of the batch, because a COMMIT record can begin where the
        previous one ends. Raise NeedsOperator ``schema_version_missing`` if the store has no such version.
        """
        schema = self.schemas.get_table_schema(table, SnapshotId(max(0, after - 1)))
        if schema is None:
            raise NeedsOperator(
                "schema_version_missing",
                f"the store no longer has the columns of the table with OID {int(table)} at LSN {after}, without"
                " which its staged changes cannot be read",
                hint="copy the table again: levada resync MANIFEST TABLE",
            )
        return schema


def wait_durable(
    destination: Destination, targets: Sequence[TableTarget], mark: Watermark, stopping: threading.Event
) -> None:
    """Ask the destination until every accepted write of these tables is durable.

    Raise InterruptedError if ``stopping`` is set before.
    """
    write, request = destination.write_events, DurabilityRequest(targets, mark.lsn)
    while require_durability(write(request, mark), write) is not Durability.DURABLE:
        if stopping.wait(_RETRY_INTERVAL_S):
            raise InterruptedError("stopped before the destination made its writes durable")
