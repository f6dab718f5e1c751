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
from levada.runtime.copies.orders import plan_to_text, read_answer
from levada.runtime.copies.table_copy import Copied
from levada.runtime.tables.copy_plan import Recreate, ReplaceInPlace
from levada.schema.storage import TableStorage
from levada.schema.table import COPY_VERSION
from levada.status import CopyProgress
from levada.stores.interface import CopyOrder, PipelineStore
from levada.values import Lsn, QualifiedTable, TableId

POLL_S: Final = 2.0

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
    ) -> Copied:
        """Copy the table as `TableCopy.run` does, but in another process.

        Raise Transient ``copy_silent`` if no process takes the order, or if its heartbeats stop. Raise Transient
        ``copy_lost`` if the destination does not have the copy that the process reported.
        """
        order = CopyOrder(uuid.uuid4().hex, self.epoch, plan=plan_to_text(plan))
        self.store.order_copy(table, order)
        seen = OrderedCopy(order.token)
        started(seen)
        try:
            lsn, storage = self._wait(table, name, order, seen, cancelled)
        finally:
            self.store.order_copy(table, None)
            # The process has stored the schema and the settings of its copy, also if the copy failed later.
            self.store.load_table_schemas()
            self.store.load_table_controls()
            self.store.load_fingerprints()
        return self._verify_copy(table, name, plan, lsn, storage)

    def _wait(
        self, table: TableId, name: QualifiedTable, order: CopyOrder, seen: OrderedCopy, cancelled: threading.Event
    ) -> tuple[Lsn, TableStorage]:
        beat, heard_at = -1, time.monotonic()
        while not cancelled.wait(POLL_S):
            now = self.store.get_copy_order(table)
            if now is None or now.token != order.token:
                break
            answer = read_answer(now)
            seen.newest = answer.progress or seen.newest
            if answer.error is not None:
                raise answer.error
            if answer.lsn is not None and answer.storage is not None:
                return answer.lsn, answer.storage
            if answer.beat != beat:
                beat, heard_at = answer.beat, time.monotonic()
            elif time.monotonic() - heard_at > self.silence_s:
                raise Transient(
                    "copy_silent",
                    f"the copy of {name} has not reported for {self.silence_s:.0f} s",
                    hint="see why its Job does not run: kubectl get jobs -l levada.dev/role=copy",
                )
        raise Transient("copy_cancelled", f"the copy of {name} was cancelled")

    def _verify_copy(
        self, table: TableId, name: QualifiedTable, plan: Recreate | ReplaceInPlace, lsn: Lsn, storage: TableStorage
    ) -> Copied:
        destination = self.destination
        watermark = destination.capabilities.watermark
        schema = self.store.get_table_schema(table, COPY_VERSION)
        if schema is not None:
            # The process may have created the table, or under another name. This process has not seen that.
            perform(destination.copied_elsewhere, plan.settings.target(schema, self.config_ref.current))
        mark = require_watermark(destination.applied(table), destination.applied) if watermark else None
        if schema is None or (watermark and (mark is None or mark.lsn != lsn)):
            raise Transient("copy_lost", f"the destination does not have the copy of {name} that was made at {lsn}")
        return Copied(schema, lsn, storage)
