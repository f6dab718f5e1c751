"""The driver's side of a dedicated copy. It orders the copy from another process, waits, and verifies the result."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from levada.destinations.answers import perform, require_watermark
from levada.errors import Transient
from levada.postgres.catalog import read_table_schema
from levada.runtime.copies.orders import read_answer
from levada.runtime.copies.table_copy import Copied, TableCopy, newest_schema
from levada.runtime.tables.publication_gaps import published_table
from levada.runtime.tables.requests import CopySettings, last_copy_settings
from levada.runtime.tables.resync import can_replace
from levada.schema import ReplicatedTableSchema
from levada.schema.storage import TableStorage
from levada.schema.table import COPY_VERSION
from levada.status import CopyProgress
from levada.stores.interface import CopyOrder, TableControls
from levada.values import Lsn, QualifiedTable, TableId

_POLL_S: Final = 2.0

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

    copier: TableCopy
    silence_s: float

    def run(
        self,
        table: TableId,
        name: QualifiedTable,
        wanted: CopySettings,
        cancelled: threading.Event,
        started: Callable[[OrderedCopy], None],
    ) -> Copied:
        """Copy the table as `TableCopy.run` does, but in another process.

        Raise Transient ``copy_silent`` if no process takes the order, or if its heartbeats stop. Raise Transient
        ``copy_lost`` if the destination does not have the copy that the process reported.
        """
        store = self.copier.store
        self._prepare_target(table, name, wanted)
        order = CopyOrder(uuid.uuid4().hex, self.copier.epoch)
        store.order_copy(table, order)
        seen = OrderedCopy(order.token)
        started(seen)
        try:
            lsn, storage = self._wait(table, name, order, seen, cancelled)
        finally:
            store.order_copy(table, None)
        return self._verify_copy(table, name, lsn, storage)

    def _prepare_target(self, table: TableId, name: QualifiedTable, wanted: CopySettings) -> None:
        """Store the settings of the copy, and drop the table at the destination unless the copy can replace it.

        The table is dropped by the schema of its last copy, which the store keeps until then.
        """
        store, destination = self.copier.store, self.copier.destination
        schema = self._read_schema(table, name, wanted)
        controls = store.get_table_controls(table) or TableControls()
        before = last_copy_settings(controls)
        perform(destination.check_place, wanted.target(schema))
        stays = before is not None and (before.place, before.depends_on) == (wanted.place, wanted.depends_on)
        replaced = stays and can_replace(destination)
        if not replaced:
            self.copier.drop((before or wanted).target(newest_schema(store, table) or schema))
        if before != wanted:
            store.store_table_controls(table, replace(controls, made_as=wanted.to_text()))
            if not replaced:
                # The table may have a new place, which may have leftovers of an earlier attempt.
                self.copier.drop(wanted.target(schema))
        if not replaced:
            store.clear_table_copy_state(table)

    def _read_schema(self, table: TableId, name: QualifiedTable, wanted: CopySettings) -> ReplicatedTableSchema:
        config_ref = self.copier.config_ref
        with config_ref.current.source.connect(application="copy") as connection:
            published = published_table(connection, config_ref.current.publication.name, table, name)
            return read_table_schema(
                connection,
                table,
                columns=published.column_attnums,
                exclude=wanted.excluded_columns,
                policy=config_ref.current.on_unrepresentable,
            )

    def _wait(
        self, table: TableId, name: QualifiedTable, order: CopyOrder, seen: OrderedCopy, cancelled: threading.Event
    ) -> tuple[Lsn, TableStorage]:
        beat, heard_at = -1, time.monotonic()
        while not cancelled.wait(_POLL_S):
            now = self.copier.store.get_copy_order(table)
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

    def _verify_copy(self, table: TableId, name: QualifiedTable, lsn: Lsn, storage: TableStorage) -> Copied:
        store, destination = self.copier.store, self.copier.destination
        watermark = destination.capabilities.watermark
        store.load_table_schemas()
        store.load_fingerprints()
        schema = store.get_table_schema(table, COPY_VERSION)
        mark = require_watermark(destination.applied(table), destination.applied) if watermark else None
        if schema is None or (watermark and (mark is None or mark.lsn != lsn)):
            raise Transient("copy_lost", f"the destination does not have the copy of {name} that was made at {lsn}")
        return Copied(schema, lsn, storage)
