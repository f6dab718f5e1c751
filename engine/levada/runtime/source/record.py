"""The record of the source in the store: the verified server, and the position of its WAL that was acknowledged."""

from __future__ import annotations

import json
import threading
from typing import Any

import psycopg

from levada.capture.history import KnownSource
from levada.errors import Yielded
from levada.postgres.server import ServerIdentity, read_start_time
from levada.segments.log import SegmentLog
from levada.stores.interface import PipelineStore
from levada.stores.slot_owners import SOURCE
from levada.values import Lsn, Witness


class SourceRecord:
    """The stored fingerprint of the source. Thread-safe.

    ``position`` is the highest LSN acknowledged to the slot without a staged segment as evidence. With durable staging
    ``witness`` is the last transaction below it, or None if there was none since ``since``. With scratch staging the
    witness of ``position`` is unknown.
    """

    def __init__(self, store: PipelineStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        text = store.get_fingerprint(SOURCE)
        raw = json.loads(text) if text else {}
        self.known = bool(raw)
        """True if the store has a record."""
        self.identity = ServerIdentity.from_json(raw.get("server"))
        self.position = Lsn.parse(raw.get("position", "0/0"))
        self.since = Lsn.parse(raw.get("since", "0/0"))
        self.witness = Witness.from_json(raw.get("witness"))
        # Records without the key come from a release that did not know it.
        self.unwitnessed = bool(raw.get("unwitnessed", self.known and self.witness is None))
        """True if scratch staging has stored the position, and no transaction was staged durably since."""
        self.former = frozenset[str](raw.get("former", ()))
        """The identities of earlier sources. All tables copied from them are copied again from the present source."""

    def begin(self, identity: ServerIdentity, position: Lsn) -> None:
        """Start a new record at ``position``, once no table depends on earlier WAL."""
        with self._lock:
            before = set() if self.identity is None else {self.identity.source}
            former = (self.former | before) - {identity.source}
            self._store_record(identity, position, None, since=position, former=former, unwitnessed=False)

    def verified(self, identity: ServerIdentity) -> None:
        """Store the server that has just been verified."""
        with self._lock:
            if identity != self.identity:
                self._store_record(identity, self.position, self.witness)

    def save_position(self, position: Lsn, witness: Witness | None, *, scratch: bool = False) -> None:
        """Store a position before it is acknowledged, or before the last segment up to it is removed.

        With ``scratch``, the transactions below it are not known. A position below the stored one is ignored.
        """
        with self._lock:
            if position > self.position:
                known = None if scratch else witness
                unwitnessed = scratch or (known is None and self.unwitnessed)
                self._store_record(self.identity, position, known, unwitnessed=unwitnessed)

    def known_source(self, log: SegmentLog) -> KnownSource:
        """Return the known state of the source at a start, from the record and the staged segments.

        On scratch staging only existing segments count as staged. The slot sends the other changes again. The same
        holds for the first start on durable staging after scratch staging.
        """
        newest = log.newest()
        end = Lsn(0) if newest is None else newest.end_lsn
        acknowledged = max(self.position, end)
        if log.staging.durable and not self.unwitnessed and self.position >= end:
            return KnownSource(self.position, self.witness, acknowledged, self.since, self.identity)
        witness = None if newest is None else newest.last
        return KnownSource(end, witness, acknowledged, self.since, self.identity)

    def require_verified(self, connection: psycopg.Connection[Any]) -> None:
        """Raise Yielded ``source_unverified`` if capture has not verified the server that answers.

        A copy from a server that was restarted, or from a former primary, may show another history than the stream.
        """
        if self.identity is not None and read_start_time(connection) != self.identity.started_at:
            raise Yielded(
                "source_unverified",
                "the server is another one than the stream last read from, or was restarted since. The copy waits until"
                " the stream has verified its history",
            )

    def _store_record(
        self,
        identity: ServerIdentity | None,
        position: Lsn,
        witness: Witness | None,
        *,
        since: Lsn | None = None,
        former: frozenset[str] | None = None,
        unwitnessed: bool | None = None,
    ) -> None:
        """Store the record. If that fails, this object keeps the earlier record, so that the next call stores again."""
        since, former = self.since if since is None else since, self.former if former is None else former
        unwitnessed = self.unwitnessed if unwitnessed is None else unwitnessed
        text = json.dumps(
            {
                "server": None if identity is None else identity.to_json(),
                "position": str(position),
                "since": str(since),
                "witness": None if witness is None else witness.to_json(),
                "former": sorted(former),
                "unwitnessed": unwitnessed,
            }
        )
        self._store.store_fingerprint(SOURCE, text)
        self.identity, self.position, self.witness, self.since, self.former = identity, position, witness, since, former
        self.unwitnessed = unwitnessed


def verified_source(store: PipelineStore) -> str:
    """Return the identity of the source in the record, or an empty string if there is no record."""
    identity = SourceRecord(store).identity
    return "" if identity is None else identity.source


def former_sources(store: PipelineStore) -> frozenset[str]:
    """Return the identities of the earlier sources in the record."""
    return SourceRecord(store).former
