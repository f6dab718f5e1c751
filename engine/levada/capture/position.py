"""The progress of capture, as the status and the metrics report it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from levada.values import Lsn, Witness

_NOWHERE: Final = Lsn(0)


@dataclass(frozen=True, slots=True)
class CapturePosition:
    """Capture's progress at one moment. Counts start at 0 in each process.

    ``received_lsn`` is the position up to which the server has sent its WAL, with or without changes, and
    ``acknowledged_lsn`` is the last LSN acknowledged to the slot. Both are None before the first stream is open. Every
    change that commits below ``staged_lsn`` is in a segment whose manifest was reported. ``open_rows`` and
    ``open_bytes`` count the segment that is being written. If ``witness`` is None, no transaction commits from
    ``since`` to ``staged_lsn``, and what committed before is not known.
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
    in_progress_bytes: int = 0
    """The size of the transactions in progress that were received so far, compressed."""
    witness: Witness | None = None
    """The last transaction in the stream that commits below ``staged_lsn``, even if it changed no replicated table."""
    since: Lsn = _NOWHERE
