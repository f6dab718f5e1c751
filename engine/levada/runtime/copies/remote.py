"""The driver's side of a dedicated copy. It orders the copy from another process, waits, and verifies the result."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from levada.destinations.answers import perform, require_watermark
from levada.destinations.interface import Destination
from levada.errors import Transient
from levada.runtime.config_ref import ConfigRef
from levada.runtime.copies.orders import Answer, OrderedRanges, plan_to_text, read_answer
from levada.runtime.copies.outcomes import Copied
from levada.runtime.tables.copy_plan import Recreate, ReplaceInPlace
from levada.runtime.tables.kept_copies import kept_text, store_kept_text
from levada.schema.storage import TableStorage
from levada.schema.table import COPY_VERSION
from levada.status import CopyProgress
from levada.stores.interface import CopyOrder, PipelineStore
from levada.stores.phases import DataSync
from levada.values import Lsn, QualifiedTable, TableId

_NO_PROGRESS: Final = CopyProgress(total_rows=0, total_bytes=0)


@dataclass(slots=True)
class OrderedCopy:
    """A running dedicated copy. ``token`` identifies its order, and ``newest`` is the last reported progress."""

    token: str
    newest: CopyProgress = field(default=_NO_PROGRESS)

    def progress(self) -> CopyProgress:
        """Return the last reported progress. From any thread."""
        return self.newest


@dataclass(frozen=True, slots=True)
class DedicatedCopy:
    """Orders copies and waits for them. An order without a heartbeat for ``silence_s`` seconds is withdrawn."""

    config_ref: ConfigRef
    store: PipelineStore
    destination: Destination
    epoch: int
    silence_s: float

    def run(
        self,
        table: TableId,
        name: QualifiedTable,
        plan: Recreate | ReplaceInPlace,
        cancelled: threading.Event,
        started: Callable[[OrderedCopy], None],
        since: Lsn | None = None,
    ) -> Copied | None:
        """Copy the table as `TableCopy.run` does, but in another process. ``since`` is that of `TableCopy.run`.

        Return None if the ranges are read, but `TableCopy.complete` has to add the changes.

        Raise Transient ``copy_silent`` if no process takes the order, or if its heartbeats stop. Raise Transient
        ``copy_lost`` if the destination does not have the copy that the process reported.
        """
        ranges = OrderedRanges(since, "" if since is None else kept_text(self.store, table))
        order = CopyOrder(uuid.uuid4().hex, self.epoch, plan=plan_to_text(plan, ranges))
        self.store.order_copy(table, order)
        seen = OrderedCopy(order.token)
        started(seen)
        try:
            answer = self._wait(table, name, order, seen, cancelled)
        finally:
            self._withdraw(table, order)
            # The process has stored the schema and the settings of its copy, also if the copy failed later.
            self.store.load_table_schemas()
            self.store.load_table_controls()
            self.store.load_fingerprints()
        self._see_table(table, plan)
        if answer.ranges_finished:
            return None
        assert answer.lsn is not None
        assert answer.storage is not None
        return self._verify_copy(table, name, answer.lsn, answer.storage)

    def _withdraw(self, table: TableId, order: CopyOrder) -> None:
        """Withdraw the order, and store the finished ranges that its process recorded."""
        now = self.store.get_copy_order(table)
        if now is not None and now.token == order.token:
            self._keep_ranges(table, now)
            self.store.order_copy(table, None)

    def _keep_ranges(self, table: TableId, order: CopyOrder) -> None:
        recorded = read_answer(order).kept
        if recorded is not None:
            store_kept_text(self.store, table, recorded)

    def _wait(
        self, table: TableId, name: QualifiedTable, order: CopyOrder, seen: OrderedCopy, cancelled: threading.Event
    ) -> Answer:
        poll_s = self.config_ref.current.limits.order_poll_s
        beat, heard_at = -1, time.monotonic()
        while not cancelled.wait(poll_s):
            now = self.store.get_copy_order(table)
            if now is None or now.token != order.token:
                break
            answer = read_answer(now)
            self._keep_ranges(table, now)
            seen.newest = answer.progress or seen.newest
            if answer.error is not None:
                raise answer.error
            if answer.final:
                return answer
            if answer.beat != beat:
                beat, heard_at = answer.beat, time.monotonic()
            elif time.monotonic() - heard_at > self.silence_s:
                raise Transient(
                    "copy_silent",
                    f"the copy of {name} has not reported for {self.silence_s:.0f} s",
                    hint="see why its Job does not run: kubectl get jobs -l levada.dev/role=copy",
                )
        raise Transient("copy_cancelled", f"the copy of {name} was cancelled")

    def _see_table(self, table: TableId, plan: Recreate | ReplaceInPlace) -> None:
        schema = self.store.get_table_schema(table, COPY_VERSION)
        if schema is not None:
            # The process may have created the table, or under another name. This process has not seen that.
            perform(self.destination.copied_elsewhere, plan.settings.target(schema, self.config_ref.current))

    def _verify_copy(self, table: TableId, name: QualifiedTable, lsn: Lsn, storage: TableStorage) -> Copied:
        destination = self.destination
        watermark = destination.capabilities.watermark
        schema = self.store.get_table_schema(table, COPY_VERSION)
        mark = require_watermark(destination.applied(table), destination.applied) if watermark else None
        if schema is None or (watermark and (mark is None or mark.lsn != lsn)):
            message = f"another process has copied {name} at LSN {lsn}, but the destination does not have that copy"
            raise Transient("copy_lost", message)
        return Copied(schema, lsn, storage)


def withdraw_orders(store: PipelineStore) -> None:
    """Withdraw the orders of an earlier driver, and store the finished ranges that their processes recorded.

    Call it after the epoch was taken, so that such a process records no more, and before the staged segments are read.
    """
    for table, phase in store.get_table_replication_states().items():
        if not isinstance(phase, DataSync):
            continue
        order = store.get_copy_order(table)
        if order is None:
            continue
        recorded = read_answer(order).kept
        if recorded is not None:
            store_kept_text(store, table, recorded)
        store.order_copy(table, None)
