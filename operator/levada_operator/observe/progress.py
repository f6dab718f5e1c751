"""The progress of a driver as the operator fetched it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from levada.status import ErrorProgress, Progress


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """The progress of a driver. ``fetched_at`` is by the operator's clock."""

    progress: Progress
    fetched_at: datetime


def error_text(error: ErrorProgress) -> str:
    """Return the reason, the code and the solution of an error in one line."""
    return f"{error.reason} [{error.code}]" + (f"; {error.solution}" if error.solution else "")
