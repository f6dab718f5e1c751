"""One batch of one table, or of all tables together, to the destination."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Final

from levada.destinations import Destination
from levada.destinations.answers import require_durability, require_flag
from levada.errors import NeedsOperator
from levada.schema import ReplicatedTableSchema
from levada.segments.batch import DurabilityRequest
from levada.segments.manifest import Manifest
from levada.segments.staged import StagedBatch, TableStart
from levada.segments.staging import Staging
from levada.stores.interface import SchemaStore
from levada.values import Durability, Lsn, OnUnrepresentable, SnapshotId, TableId, Watermark

_ASK_AGAIN_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Applied:
    """What a batch came to: everything below ``until`` is durable; ``seconds`` is what it took."""

    until: Lsn
    rows: int
    unrepresentable: int
    seconds: float


@dataclass(frozen=True, slots=True)
class AppliedBeside:
    """What a batch onto a new copy came to: it has everything below ``until``, in the version ``schema``."""

    until: Lsn
    schema: ReplicatedTableSchema


@dataclass(frozen=True, slots=True)
class Applier:
    """What it takes to apply segments of one pipeline. Called from several threads, never for one table from two."""

    pipeline: str
    epoch: int
    staging: Staging
    schemas: SchemaStore
    destination: Destination
    policy: OnUnrepresentable
    stopping: threading.Event
    turn: AbstractContextManager[object] = field(default_factory=nullcontext)
    """Held while a batch is written: with the ordering PIPELINE one call is made at a time."""

    def run(self, positions: Mapping[TableId, Lsn], manifests: Sequence[Manifest]) -> Applied:
        """Apply the manifests' changes of these tables, each from its position on; return once it is durable.

        Raise what the destination raises, and InterruptedError when the pipeline stops while a destination has only
        accepted the batch: the positions stay, so that it is applied again.
        """
        began = time.monotonic()
        until = manifests[-1].end_lsn
        starts = [TableStart(self.schema(table, after), after) for table, after in positions.items()]
        batch = StagedBatch(self.staging, manifests, starts, until, self.policy)
        mark = Watermark(self.pipeline, self.epoch, until)
        write = self.destination.write_events
        with self.turn:
            if require_durability(write(batch, mark), write) is not Durability.DURABLE:
                settle(self.destination, [batch.changes(t).schema for t in batch.tables], mark, self.stopping)
        rows = sum(f.rows for m in manifests for f in m.files if f.table in positions)
        nulled = sum(batch.changes(table).nulled for table in positions)
        return Applied(until, rows, nulled, time.monotonic() - began)

    def run_beside(
        self, schema: ReplicatedTableSchema, after: Lsn, manifests: Sequence[Manifest]
    ) -> AppliedBeside | None:
        """Apply the changes of a table from ``after`` on to its new copy, which is of the version ``schema``.

        None if the new copy cannot follow them. Raise what the destination raises.
        """
        until = manifests[-1].end_lsn
        batch = StagedBatch(self.staging, manifests, [TableStart(schema, after)], until, self.policy)
        mark = Watermark(self.pipeline, self.epoch, until)
        write = self.destination.write_replacement_events
        if not require_flag(write(batch, mark), write):
            return None
        return AppliedBeside(until, batch.changes(schema.id).schema)

    def schema(self, table: TableId, after: Lsn) -> ReplicatedTableSchema:
        """Return the version of the table before the transaction that commits at ``after``, if there is one.

        A COMMIT record can begin where the one before it ends, so a version that begins at ``after`` is a change of the
        batch. Raise NeedsOperator ``schema_version_missing``.
        """
        schema = self.schemas.get_table_schema(table, SnapshotId(max(0, after - 1)))
        if schema is None:
            raise NeedsOperator(
                "schema_version_missing",
                f"the store has no schema of table {table} that holds at {after}",
                hint="copy the table again: levada resync MANIFEST TABLE",
            )
        return schema


def settle(
    destination: Destination, schemas: Sequence[ReplicatedTableSchema], mark: Watermark, stopping: threading.Event
) -> None:
    """Ask until what was accepted of these tables is durable. Raise InterruptedError if ``stopping`` is set before."""
    write, request = destination.write_events, DurabilityRequest(schemas, mark.lsn)
    while require_durability(write(request, mark), write) is not Durability.DURABLE:
        if stopping.wait(_ASK_AGAIN_S):
            raise InterruptedError("stopped before the destination made its writes durable")
