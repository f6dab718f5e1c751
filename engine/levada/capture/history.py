"""Verifies that the server still has the history that was staged from it. `plan_session` is pure.

The engine trusts a server's LSNs only after three checks. It must be the same server. The slot must not be past the
last acknowledged LSN. The WAL that the slot sends again must contain the transactions that were staged. A crash of the
server moves the slot back, because PostgreSQL saves the position of a logical slot lazily. A restored volume moves it
back too, but then the WAL has other transactions at the same LSNs. The `Witness` distinguishes the two cases.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Final, Self

from levada.capture.message_stream import MessageStream
from levada.capture.position import CapturePosition
from levada.errors import SlotLost, Transient
from levada.pgoutput.decoder import TransactionScan
from levada.postgres.failures import RESYNC_ALL
from levada.postgres.server import ServerIdentity, ServerState
from levada.postgres.slots import SlotStatus, awaits_primary, passing_standby, validate_slot
from levada.values import Lsn, Witness

_SLICE_MESSAGES: Final = 50_000
_SLICE_BYTES: Final = 8 << 20
_POLL_S: Final = 0.25
_NOWHERE: Final = Lsn(0)


@dataclass(frozen=True, slots=True)
class Witnessed:
    """An LSN that was read from the source, and ``last``, the last transaction that commits below it."""

    end: Lsn
    last: Witness | None

    def to_json(self) -> list[Any]:
        """Return plain values for JSON."""
        return [str(self.end), None if self.last is None else self.last.to_json()]

    @classmethod
    def from_json(cls, raw: list[Any] | None) -> Self | None:
        """Parse the result of `to_json`. Return None for None."""
        return None if raw is None else cls(Lsn.parse(raw[0]), Witness.from_json(raw[1]))

    def extended_to(self, position: CapturePosition) -> Witnessed:
        """Return the same for what capture has staged. Return this if capture does not know what is between."""
        if position.staged_lsn <= self.end:
            return self
        if position.witness is not None:
            return Witnessed(position.staged_lsn, position.witness)
        return Witnessed(position.staged_lsn, self.last) if self.end >= position.since else self


@dataclass(frozen=True, slots=True)
class KnownSource:
    """The recorded state of the source before a session of the stream.

    Every change that commits below ``staged`` is staged or applied. ``witness`` is the last transaction below
    ``staged``, or None if there was none after the LSN ``since``. ``acknowledged`` is the highest LSN that the engine
    may have acknowledged to the slot. ``identity`` is the server that was verified last, or None before the first
    session. ``released`` is an LSN up to which no table needs a change, on scratch staging. It may be past
    ``staged``, because no segment survives, and the slot sends the changes again.
    """

    staged: Lsn = _NOWHERE
    witness: Witness | None = None
    acknowledged: Lsn = _NOWHERE
    since: Lsn = _NOWHERE
    identity: ServerIdentity | None = None
    released: Witnessed | None = None

    @property
    def highest(self) -> Lsn:
        """Return the highest LSN that the engine has staged or acknowledged."""
        return max(self.staged, self.acknowledged)

    @property
    def witnessed(self) -> Witnessed:
        """Return the highest LSN whose last transaction is known."""
        staged = Witnessed(self.staged, self.witness)
        return staged if self.released is None or self.released.end <= self.staged else self.released


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """The start LSN of a session, and the LSN up to which the source's history is the known one.

    If ``verify_from`` is set, the WAL between it and ``verified_to`` must be compared first.
    """

    start: Lsn
    verify_from: Lsn | None
    verified_to: Lsn


def plan_session(known: KnownSource, server: ServerState, slot: str, database: str) -> SessionPlan:
    """Return the LSN to stream from, and the WAL to compare before.

    Raise SlotLost ``source_changed`` if it is another server, or has another history. Raise SlotLost
    ``slot_missing`` or ``slot_lost`` if the slot no longer has every change. Raise NeedsOperator ``slot_foreign``,
    Transient ``source_behind`` for a standby that has not replayed its WAL yet, and ``source_standby`` for one without
    the slot that was not the source before.
    """
    _require_same_server(known, server)
    status = server.slot
    if _is_passing_standby(known, server):
        raise passing_standby(slot)
    if status is None:
        raise SlotLost("slot_missing", f"there is no replication slot {slot}", hint=RESYNC_ALL)
    try:
        validate_slot(status, database)
    except SlotLost as error:
        raise SlotLost(error.code, error.message, hint=RESYNC_ALL) from error
    _require_wal(known, server)
    confirmed = status.confirmed_flush_lsn or Lsn(0)
    require_own_position(known, status)
    witnessed = known.witnessed.end
    verify_from = confirmed if confirmed < witnessed else None
    return SessionPlan(max(confirmed, known.staged), verify_from, max(confirmed, witnessed))


def require_own_position(known: KnownSource, status: SlotStatus) -> None:
    """Raise SlotLost ``slot_lost`` if the slot is past every LSN that the engine acknowledged."""
    confirmed = status.confirmed_flush_lsn or Lsn(0)
    if known.highest and confirmed > known.highest:
        raise SlotLost(
            "slot_lost",
            f"slot {status.name} is at {confirmed}, but Levada has acknowledged no more than {known.highest}:"
            " another consumer advanced or recreated it, and the changes between are lost",
            hint=RESYNC_ALL,
        )


def require_witness(known: KnownSource, verify_from: Lsn, found: Witness | None) -> None:
    """Raise SlotLost ``source_changed`` unless ``found`` is the last transaction of ``known.witnessed``.

    ``found`` is the last transaction that the server sends again between ``verify_from`` and the end of that.
    """
    end, witness = known.witnessed.end, known.witnessed.last
    expected = witness if witness is not None and witness.commit_lsn >= verify_from else None
    if witness is None and found is not None and found.commit_lsn < known.since:
        # An earlier engine staged this transaction, and no table depends on it any more.
        return
    if found != expected:
        raise _changed(
            f"between {verify_from} and {end} its WAL ends with {found or 'no transaction'},"
            f" but {expected or 'no transaction'} was read from it before"
        )


def last_transaction(stream: MessageStream, until: Lsn, stop: threading.Event) -> Witness | None:
    """Return the last transaction of the stream that commits below ``until``, or None. Acknowledge nothing.

    Raise Transient ``stopping`` if ``stop`` is set before the stream reaches ``until``.
    """
    scan = TransactionScan()
    last: Witness | None = None
    while True:
        messages = stream.receive(_SLICE_MESSAGES, _SLICE_BYTES, _POLL_S)
        found, beyond = scan.last_below(messages, until)
        last = found or last
        idle = stream.idle_wal_end
        if beyond or (idle is not None and idle >= until and not scan.in_transaction):
            return last
        if stop.is_set():
            raise Transient("stopping", "the pipeline is stopping, and the source is not verified yet")


def _require_same_server(known: KnownSource, server: ServerState) -> None:
    before, now = known.identity, server.identity
    if before is None:
        return
    if before.system_id != now.system_id:
        raise _changed(f"its system identifier is {now.system_id}, but the tables were copied from {before.system_id}")
    if before.database_oid != now.database_oid:
        raise _changed(
            f"its database has the OID {now.database_oid}, but the tables were copied from OID {before.database_oid}"
        )
    if now.timeline < before.timeline:
        if server.in_recovery:
            raise Transient(
                "source_behind",
                f"the source is a standby on timeline {now.timeline}, which does not follow timeline {before.timeline}"
                " yet",
            )
        raise _changed(f"it is on timeline {now.timeline}, but was on timeline {before.timeline} before")
    if now.timeline > before.timeline:
        switch = server.switches.get(before.timeline)
        if switch is None:
            raise _changed(f"its timeline {now.timeline} does not descend from timeline {before.timeline}")
        read = max(known.highest, known.witnessed.end)
        if switch < read:
            raise _changed(
                f"timeline {before.timeline} ended at {switch}, but WAL up to {read} was read from it:"
                " the failover lost transactions that are in the tables"
            )


def _is_passing_standby(known: KnownSource, server: ServerState) -> bool:
    """Return True for a standby without a slot to read from, unless the stream has read from it since its start."""
    return server.in_recovery and server.identity != known.identity and awaits_primary(server.slot)


def _require_wal(known: KnownSource, server: ServerState) -> None:
    read = max(known.highest, known.witnessed.end)
    if server.wal_end >= read:
        return
    text = f"its WAL ends at {server.wal_end}, but WAL up to {read} was read from it before"
    if server.in_recovery:
        raise Transient("source_behind", f"the source is a standby that has not replayed its WAL yet: {text}")
    raise _changed(text)


def _changed(text: str) -> SlotLost:
    return SlotLost(
        "source_changed",
        f"the source is another server, or was restored to an earlier state: {text}",
        hint=RESYNC_ALL,
    )
