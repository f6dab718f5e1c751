"""Change capture by PostgreSQL's WAL: a publication, a slot, a stream."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, Self

from levada.capture.acks import Ack, AckTracker
from levada.capture.gather import SLICE_BYTES, SLICE_MESSAGES, Gather
from levada.capture.interface import CaptureProvisioning, ChangeCapture, ChangeStream
from levada.capture.resolver import TableResolver
from levada.capture.snapshot import SnapshotStream
from levada.capture.streams import BatchedStream
from levada.errors import LevadaError
from levada.pgoutput.changes import ChangeBatch
from levada.pgoutput.decoder import Decoder
from levada.postgres.connection import PostgresConnection
from levada.postgres.lag import sample_lag
from levada.postgres.publications import CoverageReport, ensure_coverage, inspect_coverage
from levada.postgres.slots import create_slot, inspect_slot, validate_slot
from levada.postgres.stream import ReplicationStream
from levada.stores.memory import MemoryStore
from levada.values import Lsn, QualifiedTable, TableId

_log = logging.getLogger(__name__)

_IDLE_S: Final = 0.25
_KEEPALIVE_S: Final = 5.0


class WalChangeCapture(ChangeCapture, CaptureProvisioning):
    """The changes of a publication's tables, resumed where the slot is, or at ``start_lsn`` if that is later."""

    def __init__(
        self, connection: PostgresConnection, *, slot: str, publication: str, start_lsn: Lsn | None = None
    ) -> None:
        self._connection = connection
        self._slot = slot
        self._publication = publication
        self._start_lsn = start_lsn or Lsn(0)
        self._required: frozenset[QualifiedTable] = frozenset()
        self._manage = False

    def with_publication_management(self, required: AbstractSet[QualifiedTable], manage: bool) -> Self:
        """Have `live` and `snapshot` see to it first that the publication has these tables; returns itself."""
        self._required = frozenset(required)
        self._manage = manage
        return self

    def inspect_coverage(self, required: AbstractSet[QualifiedTable]) -> CoverageReport:
        """Compare the publication with the tables; change nothing."""
        with self._connection.connect(application="coverage") as connection:
            return inspect_coverage(connection, self._publication, required)

    def ensure_coverage(self, required: AbstractSet[QualifiedTable], *, manage: bool) -> CoverageReport:
        """Make or extend the publication where that is allowed; return what was found before."""
        with self._connection.connect(application="coverage") as connection:
            return ensure_coverage(connection, self._publication, required, manage=manage)

    def live(self) -> ChangeStream:
        """Publication first, then slot, then stream: a change made in between is not missed.

        Raise SlotLost ``slot_lost``, NeedsOperator ``slot_foreign``, Transient ``slot_active``.
        """
        with self._connection.connect(application="start") as connection:
            if self._required:
                ensure_coverage(connection, self._publication, self._required, manage=self._manage)
            status = inspect_slot(connection, self._slot)
            if status is None:
                create_slot(connection, self._slot)
            else:
                validate_slot(status, self._connection.database)
        stream = ReplicationStream(
            self._connection, slot=self._slot, publication=self._publication, start_lsn=self._start_lsn
        )
        return WalStream(stream, TableResolver(self._connection, MemoryStore(), self._publication, failed=_raise))

    def snapshot(self, tables: Sequence[QualifiedTable]) -> ChangeStream:
        """Return the tables' rows as inserts, all of one moment, as the publication would have streamed them.

        Raise NeedsOperator ``table_not_published``.
        """
        if self._required:
            self.ensure_coverage(self._required, manage=self._manage)
        return SnapshotStream(self._connection, self._publication, tables)

    def lag(self) -> int | None:
        """Return the bytes of WAL that the slot has not confirmed; None without a slot."""
        sample = sample_lag(self._connection, self._slot)
        return None if sample is None else sample.lag_bytes


class WalStream(BatchedStream):
    """The live stream; a thread beside the reader's keeps the connection alive while that one is busy."""

    def __init__(self, stream: ReplicationStream, resolver: TableResolver) -> None:
        self._stream = stream
        self._resolver = resolver
        self._decoder = Decoder(resolver, message_prefixes=resolver.message_prefixes)
        self._tracker = AckTracker(Lsn(0), stream.acknowledge)
        self._closed = threading.Event()
        self._keeper = threading.Thread(target=self._keep_alive, name="levada-keepalive", daemon=True)
        self._keeper.start()

    def close(self) -> None:
        """Tell the last confirmation and free the slot."""
        self._closed.set()
        self._keeper.join()
        self._stream.close()
        self._resolver.release()

    def _decoded(self) -> Iterator[ChangeBatch]:
        gather = Gather()
        inside = False
        while not self._closed.is_set():
            messages = self._stream.receive(SLICE_MESSAGES, SLICE_BYTES, _IDLE_S)
            gather.add(messages)
            if taken := gather.take(in_transaction=inside):
                try:
                    batch = self._decoder.decode(taken)
                finally:
                    self._resolver.release()
                inside = batch.in_transaction
                if batch.items:
                    yield batch
                else:
                    self._passed(batch)
            elif not messages and not gather and not inside and self._stream.idle_wal_end:
                self._tracker.progress(self._stream.idle_wal_end)

    def _ack(self, commit_lsn: Lsn, *, last: bool) -> Ack:
        # A position is exclusive of what commits at it: one byte further the transaction is confirmed.
        return self._tracker.change(Lsn(commit_lsn + 1) if last else None)

    def _batch_ack(self, batch: ChangeBatch) -> Ack:
        return self._tracker.change(batch.end_lsn)

    def _passed(self, batch: ChangeBatch) -> None:
        if batch.end_lsn is not None:
            self._tracker.progress(batch.end_lsn)

    def _keep_alive(self) -> None:
        while not self._closed.wait(_KEEPALIVE_S):
            try:
                self._stream.keepalive()
            except LevadaError as error:
                _log.debug("the reader will be told: %s", error)
                return


def _raise(table: TableId, error: LevadaError) -> None:
    raise error
