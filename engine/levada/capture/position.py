"""How far capture is, as others see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from levada.values import Lsn, Witness

_NOWHERE: Final = Lsn(0)


@dataclass(frozen=True, slots=True)
class CapturePosition:
    """A snapshot of capture's progress; counts are of this process. LSNs are None before the first stream is open.

    ``received_lsn``: how far the server has sent, whether it had changes or not. ``staged_lsn``: every change that is
    committed below it is in a segment whose manifest was handed on. ``acknowledged_lsn``: what the slot was told.
    ``open_rows`` and ``open_bytes`` are in the segment that is being written.
    """

    received_lsn: Lsn | None = None
    staged_lsn: Lsn = _NOWHERE
    acknowledged_lsn: Lsn | None = None
    rows: int = 0
    transactions: int = 0
    segments: int = 0
    sessions: int = 0
    open_rows: int = 0
    open_bytes: int = 0
    witness: Witness | None = None
    """The last transaction below ``staged_lsn`` that the stream had, with or without changes of a table."""
