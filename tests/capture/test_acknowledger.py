"""The LSN that is acknowledged to the slot, with a stream that is made up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

from tests.rigs.capture import hosting

from levada.capture.acknowledger import Acknowledger
from levada.postgres.stream import ReplicationStream
from levada.values import Lsn, Witness


@dataclass
class Slot:
    """The LSNs that reach the store and the slot, in order."""

    events: list[tuple[str, Lsn]] = field(default_factory=list)

    def acknowledge(self, lsn: Lsn) -> None:
        """Receive an LSN as the stream does."""
        self.events.append(("slot", lsn))

    def persist(self, lsn: Lsn, witness: Witness | None) -> Callable[[], None]:
        """Return the function that writes an LSN to the store."""
        return lambda: self.events.append(("store", lsn))

    def open(self, *, durable: bool, confirmed: int, staged: int = 0) -> Acknowledger:
        """Return the acknowledger of a stream that begins."""
        made = Acknowledger(hosting(persist_ack=self.persist), durable=durable, idle_interval_s=0.0)
        made.attach(cast(ReplicationStream, self), Lsn(confirmed), Lsn(staged), None)
        return made


def test_staged_changes_are_acknowledged_once_the_store_has_the_position() -> None:
    """A slot that is ahead of the store was moved by another consumer."""
    slot = Slot()
    acknowledger = slot.open(durable=True, confirmed=100)
    acknowledger.staged(Lsn(200), None)
    acknowledger.close()
    acknowledger.applied(Lsn(300))
    assert slot.events == [("store", 200), ("slot", 200)]
    assert acknowledger.acknowledged == 200


def test_scratch_staging_acknowledges_what_every_table_has_applied() -> None:
    """A restart loses what is staged there, so the slot must keep it."""
    slot = Slot()
    acknowledger = slot.open(durable=False, confirmed=100)
    acknowledger.staged(Lsn(200), None)
    acknowledger.close()
    acknowledger.idle(Lsn(250), None)
    assert slot.events == []
    acknowledger.applied(Lsn(150))
    assert slot.events == [("slot", 150)]
    acknowledger.applied(Lsn(200))
    acknowledger.idle(Lsn(250), None)
    assert slot.events == [("slot", 150), ("slot", 200), ("store", 250), ("slot", 250)]


def test_a_stream_begins_with_what_is_staged() -> None:
    """Segments of an earlier process are acknowledged, and a slot never moves back."""
    slot = Slot()
    slot.open(durable=True, confirmed=100, staged=200)
    assert slot.events == [("store", 200), ("slot", 200)]
    slot.open(durable=True, confirmed=300, staged=200)
    slot.open(durable=False, confirmed=100, staged=200)
    assert slot.events == [("store", 200), ("slot", 200)]
