"""The record of the source in the store."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from levada.capture.history import Witnessed
from levada.errors import Transient
from levada.postgres.server import ServerIdentity
from levada.runtime.source.record import SourceRecord, SourceState
from levada.segments.log import SegmentLog
from levada.segments.staging import Staging
from levada.stores import MemoryStore
from levada.values import Lsn, Witness

SERVER = ServerIdentity("1", 1, 1, "2026-01-01")
WITNESS = Witness(Lsn(4), 7, 0)


class Away(MemoryStore):
    """A store that does not answer while ``away``."""

    away = False

    def store_fingerprint(self, subject: str, fingerprint: str) -> None:
        if self.away:
            raise Transient("store_unavailable", "the store does not answer")
        super().store_fingerprint(subject, fingerprint)


def test_what_could_not_be_kept_is_kept_at_the_next_call() -> None:
    """A position that the store did not take is not taken for kept, nor is a server."""
    store = Away("shop")
    store.next_epoch()
    record = SourceRecord(store)
    for keep in (partial(record.save_position, Lsn(5), None), partial(record.verified, SERVER)):
        store.away = True
        with pytest.raises(Transient):
            keep()
        store.away = False
        keep()
    kept = SourceRecord(store).state
    assert (kept.position, kept.identity) == (Lsn(5), SERVER)


def test_a_position_of_scratch_staging_has_no_witness(tmp_path: Path) -> None:
    """Durable staging begins where the slot is, until a transaction of its own is known at the stored position."""
    store = MemoryStore("shop")
    store.next_epoch()
    log = SegmentLog(Staging.open(str(tmp_path)), "shop")
    record = SourceRecord(store)
    record.begin(SERVER, Lsn(1))
    assert record.known_source(log).staged == 1
    for lsn, witness, scratch, staged in (
        (5, WITNESS, True, 0),
        (6, None, False, 0),
        (9, WITNESS, False, 9),
        (12, None, False, 12),
        (15, None, True, 0),
    ):
        if scratch:
            record.save_scratch_position(Lsn(lsn))
        else:
            record.save_position(Lsn(lsn), witness)
        known = SourceRecord(store).known_source(log)
        assert (known.staged, known.acknowledged) == (staged, lsn)


def test_the_end_of_removed_segments_is_evidence_of_the_source(tmp_path: Path) -> None:
    """On scratch staging the newest removed segment is known after a restart, also past the acknowledged position."""
    store = MemoryStore("shop")
    store.next_epoch()
    log = SegmentLog(Staging.open(str(tmp_path), durable=False), "shop")
    record = SourceRecord(store)
    record.begin(SERVER, Lsn(1))
    record.save_scratch_position(Lsn(3), Witnessed(Lsn(5), WITNESS))
    record.save_scratch_position(Lsn(3), Witnessed(Lsn(4), None))
    record.save_scratch_position(Lsn(4))
    known = SourceRecord(store).known_source(log)
    assert (known.staged, known.acknowledged, known.witnessed) == (0, 4, Witnessed(Lsn(5), WITNESS))
    record.begin(SERVER, Lsn(2))
    assert SourceRecord(store).known_source(log).released == Witnessed(Lsn(2), None)


@pytest.mark.parametrize(
    "state",
    [
        SourceState(),
        SourceState(SERVER, Lsn(9), Lsn(2), WITNESS, Witnessed(Lsn(5), WITNESS), True, frozenset("ab")),
        SourceState(released=Witnessed(Lsn(5), None)),
    ],
)
def test_what_is_stored_is_read_again(state: SourceState) -> None:
    """A state that is parsed from its text is the same."""
    assert SourceState.from_text(state.to_text()) == state
