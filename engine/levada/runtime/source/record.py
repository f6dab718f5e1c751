"""The record of the source in the store: the verified server, and the position of its WAL that was acknowledged."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import psycopg

from levada.capture.history import KnownSource, Witnessed
from levada.errors import Yielded
from levada.postgres.server import ServerIdentity, read_start_time
from levada.segments.log import SegmentLog
from levada.stores.interface import PipelineStore
from levada.stores.slot_owners import SOURCE
from levada.values import Lsn, Witness

_NOWHERE: Final = Lsn(0)


@dataclass(frozen=True, slots=True)
class SourceState:
    """The stored state of the source.

    ``position`` is the highest LSN acknowledged to the slot without a staged segment as evidence. With durable staging
    ``witness`` is the last transaction below it, or None if there was none since ``since``. With scratch staging the
    witness of ``position`` is unknown, and ``released`` is an LSN up to which no table needs a change.
    ``unwitnessed`` is True if scratch staging has stored the position, and no transaction was staged durably since.
    ``former`` has the identities of earlier sources. All tables copied from them are copied again from the present one.
    ``marks`` is the identity that the tables at the destination have, if they were copied from an earlier source and
    compared with the present one. It is empty if that is the identity of the present one.
    """

    identity: ServerIdentity | None = None
    position: Lsn = _NOWHERE
    since: Lsn = _NOWHERE
    witness: Witness | None = None
    released: Witnessed | None = None
    unwitnessed: bool = False
    former: frozenset[str] = frozenset()
    marks: str = ""

    @property
    def source(self) -> str:
        """The identity that the tables at the destination have, empty before the first session."""
        return self.marks or ("" if self.identity is None else self.identity.source)

    def to_text(self) -> str:
        """Return the state as JSON."""
        return json.dumps(
            {
                "server": None if self.identity is None else self.identity.to_json(),
                "position": str(self.position),
                "since": str(self.since),
                "witness": None if self.witness is None else self.witness.to_json(),
                "released": None if self.released is None else self.released.to_json(),
                "unwitnessed": self.unwitnessed,
                "former": sorted(self.former),
                "marks": self.marks,
            }
        )

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Parse the result of `to_text`."""
        raw = json.loads(text)
        return cls(
            identity=ServerIdentity.from_json(raw["server"]),
            position=Lsn.parse(raw["position"]),
            since=Lsn.parse(raw["since"]),
            witness=Witness.from_json(raw["witness"]),
            released=Witnessed.from_json(raw["released"]),
            unwitnessed=raw["unwitnessed"],
            former=frozenset(raw["former"]),
            marks=raw.get("marks", ""),  # of a version before comparisons
        )


class SourceRecord:
    """The stored state of the source. Thread-safe."""

    def __init__(self, store: PipelineStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        text = store.get_fingerprint(SOURCE)
        self.known = bool(text)
        """True if the store has a record."""
        self._state = SourceState.from_text(text) if text else SourceState()

    @property
    def state(self) -> SourceState:
        """The state that was stored last."""
        return self._state

    def begin(self, identity: ServerIdentity, position: Lsn, *, compared: bool = False) -> None:
        """Start a new record at ``position``, once no table depends on earlier WAL.

        If ``compared`` is True, tables at the destination stay as they were marked, and are compared with this server.
        """
        with self._lock:
            known = self._state
            released = Witnessed(position, None)
            begun = SourceState(identity, position, since=position, released=released, former=known.former)
            if compared and known.source != identity.source:
                self._set(replace(begun, marks=known.source))
            else:
                self._set(replace(begun, former=(known.former | ({known.source} - {""})) - {identity.source}))

    def verified(self, identity: ServerIdentity) -> None:
        """Store the server that has just been verified."""
        with self._lock:
            if identity != self._state.identity:
                self._set(replace(self._state, identity=identity))

    def save_position(self, position: Lsn, witness: Witness | None) -> None:
        """Store a position before it is acknowledged, or before the last segment up to it is removed.

        ``witness`` is the last transaction below it. A position below the stored one is ignored.
        """
        with self._lock:
            known = self._state
            if position > known.position:
                unwitnessed = witness is None and known.unwitnessed
                self._set(replace(known, position=position, witness=witness, unwitnessed=unwitnessed))

    def save_scratch_position(self, position: Lsn, released: Witnessed | None = None) -> None:
        """Store a position before it is acknowledged, if its segments do not survive this process.

        ``released`` is an LSN up to which no table needs a change. One below the stored one is ignored.
        """
        with self._lock:
            known = self._state
            state = known
            if position > known.position:
                state = replace(state, position=position, witness=None, unwitnessed=True)
            if released is not None and (known.released is None or released.end > known.released.end):
                state = replace(state, released=released)
            if state != known:
                self._set(state)

    def known_source(self, log: SegmentLog) -> KnownSource:
        """Return the known state of the source at a start, from the record and the staged segments.

        On scratch staging only existing segments count as staged. The slot sends the other changes again. The same
        holds for the first start on durable staging after scratch staging.
        """
        state, newest = self._state, log.newest()
        end = Lsn(0) if newest is None else newest.end_lsn
        acknowledged = max(state.position, end)
        staged, witness = end, None if newest is None else newest.last
        if log.staging.durable and not state.unwitnessed and state.position >= end:
            staged, witness = state.position, state.witness
        return KnownSource(staged, witness, acknowledged, state.since, state.identity, state.released)

    def require_verified(self, connection: psycopg.Connection[Any]) -> str:
        """Return the start time of the server that answers.

        Raise Yielded ``source_unverified`` if capture has not verified it.

        A copy from a server that was restarted, or from a former primary, may show another history than the stream.
        """
        identity, started_at = self._state.identity, read_start_time(connection)
        if identity is not None and started_at != identity.started_at:
            raise Yielded(
                "source_unverified",
                "the server is another one than the stream last read from, or was restarted since. The copy waits until"
                " the stream has verified its history",
            )
        return started_at

    def _set(self, state: SourceState) -> None:
        """Store a state. If that fails, this object keeps the earlier one, so that the next call stores again."""
        self._store.store_fingerprint(SOURCE, state.to_text())
        self._state = state


def verified_source(store: PipelineStore) -> str:
    """Return the identity of the source in the record, or an empty string if there is no record."""
    return SourceRecord(store).state.source


def former_sources(store: PipelineStore) -> frozenset[str]:
    """Return the identities of the earlier sources in the record."""
    return SourceRecord(store).state.former
