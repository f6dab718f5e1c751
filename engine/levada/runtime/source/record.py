"""The engine's record of its source in the store: the server that was verified, and how far its WAL was taken."""

from __future__ import annotations

import json
import threading
from typing import Any, Final

import psycopg

from levada.capture.history import KnownSource
from levada.errors import Yielded
from levada.postgres.server import ServerIdentity, read_start_time
from levada.segments.log import SegmentLog
from levada.stores.interface import PipelineStore
from levada.values import Lsn, Witness

_SUBJECT: Final = "source"


class SourceRecord:
    """The source's fingerprint. Usable from any thread.

    ``position`` is the highest position that the slot has got without a staged segment as evidence. With durable
    staging ``witness`` is the last transaction below it, None if there was none since ``since``.
    """

    def __init__(self, store: PipelineStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        text = store.get_fingerprint(_SUBJECT)
        raw = json.loads(text) if text else {}
        self.known = bool(raw)
        """Whether the store has a record."""
        self.identity = ServerIdentity.from_json(raw.get("server"))
        self.position = Lsn.parse(raw.get("position", "0/0"))
        self.since = Lsn.parse(raw.get("since", "0/0"))
        self.witness = Witness.from_json(raw.get("witness"))
        self.former = frozenset[str](raw.get("former", ()))
        """The identities of earlier sources, all of whose tables are copied again from the present one."""

    def begin(self, identity: ServerIdentity, position: Lsn) -> None:
        """Replace the record, where no table depends on earlier WAL."""
        with self._lock:
            before = set() if self.identity is None else {self.identity.source}
            former = (self.former | before) - {identity.source}
            self._keep(identity, position, None, since=position, former=former)

    def verified(self, identity: ServerIdentity) -> None:
        """Keep the server that has just been verified."""
        with self._lock:
            if identity != self.identity:
                self._keep(identity, self.position, self.witness)

    def remember(self, position: Lsn, witness: Witness | None) -> None:
        """Keep a position before the slot gets it, or before its last segment is removed; a lower one is ignored."""
        with self._lock:
            if position > self.position:
                self._keep(self.identity, position, witness)

    def knowledge(self, log: SegmentLog) -> KnownSource:
        """Return the knowledge that a start has: the record, and the segments.

        Where staging is scratch and lost, nothing is staged, and what is sent again is staged again.
        """
        manifests = log.list()
        end = manifests[-1].end_lsn if manifests else Lsn(0)
        acknowledged = max(self.position, end)
        if log.staging.durable and self.position >= end:
            return KnownSource(self.position, self.witness, acknowledged, self.since, self.identity)
        witness = manifests[-1].last if manifests else None
        return KnownSource(end, witness, acknowledged, self.since, self.identity)

    def require_verified(self, connection: psycopg.Connection[Any]) -> None:
        """Raise Yielded ``source_unverified`` if capture has not verified the server that answers.

        A copy from a server that was restarted, or from a former primary, may show another history than the stream.
        """
        if self.identity is not None and read_start_time(connection) != self.identity.started_at:
            raise Yielded(
                "source_unverified",
                "the server is not the one that the stream was read from last, or was restarted since: a copy waits"
                " until the stream has verified its history",
            )

    def _keep(
        self,
        identity: ServerIdentity | None,
        position: Lsn,
        witness: Witness | None,
        *,
        since: Lsn | None = None,
        former: frozenset[str] | None = None,
    ) -> None:
        """Store the record. After an error this object has the record that was stored before, so it is kept again."""
        since, former = self.since if since is None else since, self.former if former is None else former
        text = json.dumps(
            {
                "server": None if identity is None else identity.to_json(),
                "position": str(position),
                "since": str(since),
                "witness": None if witness is None else witness.to_json(),
                "former": sorted(former),
            }
        )
        self._store.store_fingerprint(_SUBJECT, text)
        self.identity, self.position, self.witness, self.since, self.former = identity, position, witness, since, former
