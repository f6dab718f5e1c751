"""A problem that a check reports."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """The effect of a problem. A pipeline can run with warnings only."""

    ERROR = "Error"
    WARNING = "Warning"


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of the source. ``hint`` is the SQL that resolves it, if there is any."""

    severity: Severity
    code: str
    message: str
    hint: str = ""
