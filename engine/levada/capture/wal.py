"""Change capture by PostgreSQL's WAL: a publication, a slot, a stream."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, Self

import psycopg

from levada.capture.acks import Ack, AckTracker
from levada.capture.gather import SLICE_BYTES, SLICE_MESSAGES, Gather
from levada.capture.interface import CaptureProvisioning, ChangeCapture, ChangeStream, Continuity
from levada.capture.requirements import require_source
from levada.capture.resolver import TableResolver
from levada.capture.snapshot import SnapshotSource
from levada.capture.streams import BatchedStream, BatchSource
from levada.errors import LevadaError, NeedsOperator
from levada.pgoutput.changes import ChangeBatch
from levada.pgoutput.decoder import Decoder
from levada.postgres.connection import PostgresConnection
from levada.postgres.lag import current_wal_lsn, sample_lag
from levada.postgres.publications import CoverageReport, ensure_coverage, inspect_coverage
from levada.postgres.slots import create_slot, inspect_slot
from levada.postgres.stream import ReplicationStream
from levada.stores.memory import MemoryStore
from levada.values import Lsn, QualifiedTable, TableId

_log = logging.getLogger(__name__)

_IDLE_S: Final = 0.25
_KEEPALIVE_S: Final = 5.0


class WalChangeCapture(ChangeCapture, CaptureProvisioning):
    """The changes of a publication's tables, resumed where the slot is.

    ``start_lsn`` is a position that the caller keeps: changes of transactions that commit below it are left out,
    because the caller has them. It cannot bring back what the slot has confirmed: if it is below the slot's position,
    the first stream is Fresh. It is refused (NeedsOperator ``start_lsn_ahead``) if the server has not reached it.

    The slot keeps WAL on the server's disk until it is dropped. To retire it: ``pg_drop_replication_slot``.
    """

    def __init__(
        self, connection: PostgresConnection, *, slot: str, publication: str, start_lsn: Lsn | None = None
    ) -> None:
        self._connection = connection
        self._slot = slot
        self._publication = publication
        self._start_lsn = start_lsn or Lsn(0)
        self._required: frozenset[QualifiedTable] = frozenset()
        self._manage = False
        self._known: Lsn | None = self._start_lsn or None
        """The highest position that the slot can have unless another consumer moves it. None: not known."""
        self._stream: ReplicationStream | None = None
        self._fresh = False
        """Whether the next stream is the first one after a resume point that was Fresh."""

    def with_publication_management(self, required: AbstractSet[QualifiedTable], manage: bool) -> Self:
        """Require these tables of the publication, and make or extend it if ``manage``. Return the capture itself."""
        self._required = frozenset(required)
        self._manage = manage
        return self

    def inspect_coverage(self, required: AbstractSet[QualifiedTable]) -> CoverageReport:
        """Compare the publication with the tables. Change nothing."""
        with self._connection.connect(application="coverage") as connection:
            return inspect_coverage(connection, self._publication, required)

    def ensure_coverage(self, required: AbstractSet[QualifiedTable], *, manage: bool) -> CoverageReport:
        """Make or extend the publication where that is allowed. Return the report from before."""
        with self._connection.connect(application="coverage") as connection:
            return ensure_coverage(connection, self._publication, required, manage=manage)

    def prepare(self) -> Continuity:
        """Check the source, then make the publication and the slot where they are missing, in this order.

        Nothing is made unless every check passes. Return Fresh if the slot was made now, or if another consumer moved
        it since this object last used it. Raise NeedsOperator with every problem of the source (``preflight_failed`` if
        there are several), SlotLost ``slot_lost``.
        """
        with self._connection.connect(application="start") as connection:
            return self._prepare(connection)

    def live(self) -> ChangeStream:
        """Prepare as `prepare` does, then open the stream.

        The stream's ``continuity`` is Fresh if the slot was made, or moved by another consumer, since this object's
        last stream. Raise what `prepare` raises, and Transient ``slot_active`` while another process holds the slot.
        """
        with self._connection.connect(application="start") as connection:
            if self._start_lsn > current_wal_lsn(connection):
                raise NeedsOperator(
                    "start_lsn_ahead",
                    f"start_lsn {self._start_lsn} is ahead of the server's WAL: it is of another server, or of a state"
                    " that was lost in a restore",
                    hint="take a new snapshot, and leave start_lsn out",
                )
            self._prepare(connection)
            stream = ReplicationStream(
                self._connection, slot=self._slot, publication=self._publication, start_lsn=self._start_lsn
            )
            try:
                # From here on nobody else can move the slot.
                self._compare(connection)
            except BaseException:
                stream.close()
                raise
        self._stream = stream
        continuity = Continuity.FRESH if self._fresh else Continuity.RESUMED
        self._fresh = False
        resolver = TableResolver(self._connection, MemoryStore(), self._publication, failed=_raise)
        return BatchedStream(WalSource(stream, resolver), f"the stream of slot {self._slot}", continuity)

    def snapshot(self, tables: Sequence[QualifiedTable]) -> ChangeStream:
        """Return the tables' rows as inserts, all of one moment, as the publication would have streamed them.

        The slot is made first if there is none, so that the next `live` stream has every change since. Each table is
        locked against TRUNCATE and ALTER TABLE until the stream is closed.
        Raise what `prepare` raises, and NeedsOperator ``table_not_published``.
        """
        with self._connection.connect(application="start") as connection:
            require_source(
                connection, self._slot, self._publication, self._required, manage=self._manage, read=frozenset(tables)
            )
            self._prepare(connection)
        source = SnapshotSource(self._connection, self._publication, tables)
        return BatchedStream(source, f"the snapshot of {', '.join(map(str, tables))}")

    def lag(self) -> int | None:
        """Return the bytes of WAL that the slot has not confirmed, None without a slot."""
        sample = sample_lag(self._connection, self._slot)
        return None if sample is None else sample.lag_bytes

    def _prepare(self, connection: psycopg.Connection[Any]) -> Continuity:
        require_source(connection, self._slot, self._publication, self._required, manage=self._manage)
        if self._required:
            ensure_coverage(connection, self._publication, self._required, manage=self._manage)
        if inspect_slot(connection, self._slot) is not None:
            return self._compare(connection)
        # What this object knew was of a slot that is gone.
        self._stream = None
        self._known = create_slot(connection, self._slot)
        self._fresh = True
        return Continuity.FRESH

    def _compare(self, connection: psycopg.Connection[Any]) -> Continuity:
        """Compare the slot's position with the highest one that this object can have moved it to."""
        status = inspect_slot(connection, self._slot)
        confirmed = Lsn(0) if status is None else status.confirmed_flush_lsn or Lsn(0)
        if self._known is not None and self._stream is not None:
            self._known = max(self._known, self._stream.acknowledged)
        moved = self._known is not None and confirmed > self._known
        if moved:
            _log.warning("slot %s is at %s, beyond %s: changes may be missing", self._slot, confirmed, self._known)
            self._fresh = True
        self._known = confirmed if self._known is None else max(confirmed, self._known)
        return Continuity.FRESH if moved else Continuity.RESUMED


class WalSource(BatchSource):
    """The batches of the live stream. A thread of its own keeps the connection alive while the reader is busy."""

    def __init__(self, stream: ReplicationStream, resolver: TableResolver) -> None:
        self._stream = stream
        self._resolver = resolver
        self._decoder = Decoder(resolver, message_prefixes=resolver.message_prefixes)
        self._tracker = AckTracker(Lsn(0), stream.acknowledge)
        self._closed = threading.Event()
        self._abandoned = False
        self._keeper = threading.Thread(target=self._keep_alive, name="levada-keepalive", daemon=True)
        self._keeper.start()

    def close(self) -> None:
        """Report the last confirmation and free the slot."""
        self._closed.set()
        self._keeper.join()
        self._release()

    def abandon(self) -> None:
        """Leave it to the thread to free the slot. Nothing that was not confirmed is acknowledged."""
        self._abandoned = True
        self._closed.set()

    def decoded(self) -> Iterator[ChangeBatch]:
        """Yield what the server sends until the stream is closed."""
        gather = Gather()
        inside = False
        while not self._closed.is_set():
            messages = self._receive()
            gather.add(messages)
            if taken := gather.take(in_transaction=inside):
                try:
                    batch = self._decoder.decode(taken)
                finally:
                    self._resolver.release()
                inside = batch.in_transaction
                yield batch
            elif not messages and not gather and not inside and self._stream.idle_wal_end:
                self._tracker.progress(self._stream.idle_wal_end)

    def ack(self, commit_lsn: Lsn, *, last: bool) -> Ack:
        """Register a change. Its last one alone releases a transaction."""
        # A position is exclusive of what commits at it: one byte further the transaction is confirmed.
        return self._tracker.change(Lsn(commit_lsn + 1) if last else None)

    def batch_ack(self, batch: ChangeBatch) -> Ack:
        """Register a batch, which releases the transactions that end in it."""
        return self._tracker.change(batch.end_lsn)

    def passed(self, batch: ChangeBatch) -> None:
        """Release the end of the batch once all before it is confirmed."""
        if batch.end_lsn is not None:
            self._tracker.progress(batch.end_lsn)

    def _receive(self) -> list[bytes]:
        try:
            return self._stream.receive(SLICE_MESSAGES, SLICE_BYTES, _IDLE_S)
        except LevadaError:
            if self._closed.is_set():
                return []
            raise

    def _keep_alive(self) -> None:
        while not self._closed.wait(_KEEPALIVE_S):
            try:
                self._stream.keepalive()
            except LevadaError as error:
                _log.debug("the reader will get the error: %s", error)
                self._closed.wait()
        if self._abandoned:
            self._release()

    def _release(self) -> None:
        self._stream.close()
        self._resolver.release()


def _raise(table: TableId, error: LevadaError) -> None:
    raise error
