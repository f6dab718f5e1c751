"""The delay of the stream, which the lag of a table includes."""

from __future__ import annotations

from levada.runtime.report.stream_delay import Delay, StreamDelay, bytes_after
from levada.status import SlotProgress
from levada.values import Lsn

BACKLOG = 500 << 20


def test_a_start_with_a_backlog_is_no_zero() -> None:
    """Until a transaction is staged, the delay is at least the time since the start. Then it is that one's age."""
    stream = StreamDelay()
    assert stream.add(100.0, BACKLOG, None) == Delay(0.0, known=False)
    assert stream.add(130.0, BACKLOG, None) == Delay(30.0, known=False)
    assert stream.add(131.0, BACKLOG, 3600.0) == Delay(3600.0)
    assert stream.add(132.0, 0, 3600.0) == Delay()


def test_a_silent_source_is_no_delay_of_what_follows() -> None:
    """While a large transaction arrives after an hour of silence, the delay is not an hour, and is not known."""
    stream = StreamDelay()
    assert stream.add(0.0, 0, 3600.0) == Delay()
    assert stream.add(70.0, BACKLOG, 3670.0) == Delay(70.0, known=False)
    assert stream.add(71.0, BACKLOG, 60.0) == Delay(60.0)
    assert stream.add(72.0, None, 61.0) == Delay()


def test_what_was_received_since_the_sample_does_not_count() -> None:
    """The slot's lag counts from the acknowledged LSN, which trails what is received."""
    slot = SlotProgress("s", lag_bytes=1000)
    assert bytes_after(slot, Lsn(5600), Lsn(5000)) == 400
    assert bytes_after(slot, Lsn(7000), Lsn(5000)) == 0
    assert bytes_after(slot, None, None) == 1000
    assert bytes_after(SlotProgress("s"), Lsn(1), Lsn(1)) is None
