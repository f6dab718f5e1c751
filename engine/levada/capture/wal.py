"""Change capture from PostgreSQL's WAL, by a publication, a logical replication slot and its stream."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final, Self

import psycopg

from levada.capture.acks import Ack, AckTracker
from levada.capture.host import CaptureHost
from levada.capture.interface import CaptureProvisioning, ChangeCapture, ChangeStream, Continuity
from levada.capture.message_buffer import MessageBuffer
from levada.capture.message_stream import SliceLimits
from levada.capture.requirements import require_source
from levada.capture.resolver import TableResolver
from levada.capture.snapshot import SnapshotSource
from levada.capture.streams import IDLE_S, BatchedStream, BatchSource
from levada.errors import LevadaError, NeedsOperator
from levada.pgoutput.changes import ChangeBatch
from levada.pgoutput.decoder import Decoder
from levada.postgres.connection import PostgresConnection
from levada.postgres.lag import current_wal_lsn, sample_lag
from levada.postgres.publication_owners import read_publication_owner
from levada.postgres.publications import CoverageReport, ensure_coverage, inspect_coverage
from levada.postgres.slots import create_slot, inspect_slot
from levada.postgres.stream import ReplicationStream
from levada.stores.memory import MemoryStore
from levada.stores.slot_owners import slot_owners
from levada.threads import marked_thread
from levada.values import Lsn, PipelineOwner, QualifiedTable

_log = logging.getLogger(__name__)

_KEEPALIVE_S: Final = 5.0


class WalChangeCapture(ChangeCapture, CaptureProvisioning):
    """The changes of a publication's tables, resumed at the slot's position.

    ``start_lsn`` is a position that the caller stores. The stream skips transactions that commit below it, because the
    caller has them already. Changes that the slot has confirmed cannot be read again, so the first stream is Fresh if
    ``start_lsn`` is below the slot's position. `live` raises NeedsOperator ``start_lsn_ahead`` if the server's WAL does
    not reach ``start_lsn``.

    The slot retains WAL on the server's disk until it is dropped. Drop it with ``pg_drop_replication_slot`` when you no
    longer need the capture.
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
        """The highest position that the slot can have unless another consumer moves it, or None if it is unknown."""
        self._stream: ReplicationStream | None = None
        self._fresh = False
        """Whether the resume point was Fresh at some time since the last stream was opened."""

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self._connection.where!r}, slot={self._slot!r}, publication={self._publication!r})"
        )

    def with_publication_management(self, required: AbstractSet[QualifiedTable], manage: bool) -> Self:
        """Require that the publication has these tables. Return the capture itself.

        If ``manage`` is True, `prepare` creates or extends the publication.
        """
        self._required = frozenset(required)
        self._manage = manage
        return self

    def inspect_coverage(self, required: AbstractSet[QualifiedTable]) -> CoverageReport:
        """Compare the publication with the required tables, without changing anything."""
        with self._connection.connect(application="coverage") as connection:
            return inspect_coverage(connection, self._publication, required)

    def ensure_coverage(self, required: AbstractSet[QualifiedTable], *, manage: bool) -> CoverageReport:
        """Create or extend the publication if ``manage`` and the privileges allow it.

        Return the report from *before*.
        """
        with self._connection.connect(application="coverage") as connection:
            return self._ensure_coverage(connection, required, manage=manage)

    def prepare(self) -> Continuity:
        """Check the source, then create the publication and the slot, in this order, if they are missing.

        Nothing is created unless every check passes. Return Fresh if the slot was created now, or if another consumer
        moved it since this object last used it. Raise NeedsOperator with every problem of the source, as
        ``preflight_failed`` if there are several. Raise SlotLost ``slot_lost``.
        """
        with self._connection.connect(application="start") as connection:
            return self._prepare(connection)

    def live(self) -> ChangeStream:
        """Run the steps of `prepare`, then open the stream.

        The stream's ``continuity`` is Fresh if the slot was created, or moved by another consumer, since this object's
        last stream. Raise the errors of `prepare`, NeedsOperator ``start_lsn_ahead``, and Transient ``slot_active``
        while another process holds the slot.
        """
        with self._connection.connect(application="start") as connection:
            if self._start_lsn > current_wal_lsn(connection):
                raise NeedsOperator(
                    "start_lsn_ahead",
                    f"start_lsn {self._start_lsn} is ahead of the server's WAL: it comes from another server, or from a"
                    " state that a restore has undone",
                    hint="take a new snapshot without start_lsn",
                )
            self._prepare(connection)
            stream = ReplicationStream(
                self._connection, slot=self._slot, publication=self._publication, start_lsn=self._start_lsn
            )
            try:
                # No other consumer can move the slot while this stream holds it.
                self._compare(connection)
            except BaseException:
                stream.close()
                raise
        self._stream = stream
        continuity = Continuity.FRESH if self._fresh else Continuity.RESUMED
        self._fresh = False
        resolver = TableResolver(self._connection, MemoryStore(), self._publication, CaptureHost(), slot=self._slot)
        return BatchedStream(WalSource(stream, resolver), f"the stream of slot {self._slot}", continuity)

    def snapshot(self, tables: Sequence[QualifiedTable]) -> ChangeStream:
        """Return the tables' rows as inserts, read under one snapshot with the publication's columns and row filters.

        A missing slot is created first, so that the next `live` stream has every later change. Each table is locked
        against TRUNCATE and ALTER TABLE until the stream is closed. Raise the errors of `prepare`, and NeedsOperator
        ``table_not_published``.
        """
        with self._connection.connect(application="start") as connection:
            require_source(
                connection, self._slot, self._publication, self._required, manage=self._manage, read=frozenset(tables)
            )
            self._prepare(connection)
        source = SnapshotSource(self._connection, self._publication, tables)
        return BatchedStream(source, f"the snapshot of {', '.join(map(str, tables))}")

    def lag(self) -> int | None:
        """Return the bytes of WAL that the slot has not confirmed, or None if there is no slot.

        Raise NeedsOperator ``slot_foreign`` if the slot of that name belongs to another database.
        """
        sample = sample_lag(self._connection, self._slot)
        return None if sample is None else sample.lag_bytes

    def _ensure_coverage(
        self, connection: psycopg.Connection[Any], required: AbstractSet[QualifiedTable], *, manage: bool
    ) -> CoverageReport:
        owner = read_publication_owner(connection, self._publication) if manage else None
        if owner is not None:
            raise _of_a_pipeline(f"publication {self._publication}", owner)
        report = ensure_coverage(connection, self._publication, required, manage=manage)
        if not report.satisfied and not (manage and report.manageable):
            left = ", ".join(map(str, report.blocked if manage else report.missing)) or "itself"
            reason = ", ".join(report.blockers) if manage else "its management is External"
            sql = " ".join(report.remediation)
            _log.warning("publication %s lacks %s: %s. To add them: %s", self._publication, left, reason, sql)
        return report

    def _prepare(self, connection: psycopg.Connection[Any]) -> Continuity:
        for owner in slot_owners(connection, self._slot):
            raise _of_a_pipeline(f"slot {self._slot}", owner)
        require_source(connection, self._slot, self._publication, self._required, manage=self._manage)
        if self._required:
            self._ensure_coverage(connection, self._required, manage=self._manage)
        if inspect_slot(connection, self._slot) is not None:
            return self._compare(connection)
        # The known position belongs to a slot that no longer exists.
        self._stream = None
        self._known = create_slot(connection, self._slot)
        self._fresh = True
        return Continuity.FRESH

    def _compare(self, connection: psycopg.Connection[Any]) -> Continuity:
        """Return Fresh if another consumer moved the slot past every position that this object acknowledged."""
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
    """The batches of the live stream. A background thread sends keepalives while the reader is busy."""

    def __init__(self, stream: ReplicationStream, resolver: TableResolver, slices: SliceLimits | None = None) -> None:
        self._stream = stream
        self._slices = slices or SliceLimits()
        self._resolver = resolver
        resolver.conversion = stream.conversion
        self._decoder = Decoder(resolver, message_prefixes=resolver.message_prefixes, conversion=stream.conversion)
        self._tracker = AckTracker(Lsn(0), stream.acknowledge)
        self._closed = threading.Event()
        self._abandoned = False
        self._keeper = marked_thread(self._keep_alive, "levada-keepalive")
        self._keeper.start()

    def close(self) -> None:
        """Acknowledge the last confirmed position and release the slot."""
        self._closed.set()
        self._keeper.join()
        self._release()

    def abandon(self) -> None:
        """Let the background thread release the slot. Unconfirmed changes are not acknowledged."""
        self._abandoned = True
        self._closed.set()

    def decoded(self) -> Iterator[ChangeBatch | None]:
        """Yield the server's changes as batches until the stream is closed, and None while there are none."""
        buffer = MessageBuffer(self._slices)
        inside = False
        while not self._closed.is_set():
            messages = self._receive()
            buffer.add(messages)
            if taken := buffer.take(in_transaction=inside):
                try:
                    batch = self._decoder.decode(taken)
                finally:
                    self._resolver.release()
                inside = batch.in_transaction
                yield batch
            elif not messages:
                if not buffer and not inside and self._stream.idle_wal_end:
                    self._tracker.progress(self._stream.idle_wal_end)
                yield None

    def ack(self, commit_lsn: Lsn, *, last: bool) -> Ack:
        """Register a change, and return its ack. Only the last change of a transaction moves the position."""
        # An acknowledged LSN is exclusive: it covers the commits below it. So the position is one byte past the commit.
        return self._tracker.change(Lsn(commit_lsn + 1) if last else None)

    def batch_ack(self, batch: ChangeBatch) -> Ack:
        """Register a batch, and return its ack. It moves the position past the transactions that end in the batch."""
        return self._tracker.change(batch.end_lsn)

    def delivered(self, batch: ChangeBatch) -> None:
        """Let the position reach the end of the batch when every change before it is confirmed."""
        if batch.end_lsn is not None:
            self._tracker.progress(batch.end_lsn)

    def _receive(self) -> list[bytes]:
        try:
            return self._stream.receive(self._slices.messages, self._slices.bytes, min(self.wait_s, IDLE_S))
        except LevadaError:
            if self._closed.is_set():
                return []
            raise

    def _keep_alive(self) -> None:
        while not self._closed.wait(_KEEPALIVE_S):
            try:
                self._stream.keepalive()
            except LevadaError as error:
                _log.debug("keepalive failed, and the next read raises the error: %s", error)
                self._closed.wait()
        if self._abandoned:
            self._release()

    def _release(self) -> None:
        self._stream.close()
        self._resolver.release()


def _of_a_pipeline(place: str, owner: PipelineOwner) -> NeedsOperator:
    return NeedsOperator(
        "not_the_owner",
        f"{place} belongs to {owner}, which would miss what this capture confirms or changes",
        hint="give the capture a slot and a publication of its own",
    )
