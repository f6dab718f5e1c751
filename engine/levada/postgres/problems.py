"""A problem that a check reports."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum


class Severity(StrEnum):
    """The effect of a problem. A pipeline can run with warnings only."""

    ERROR = "Error"
    WARNING = "Warning"


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of the source. ``hint`` is the SQL that resolves it, if there is any.

    ``spares_others`` is True if it concerns one table, or only copies, without which a pipeline that has run before
    starts. ``passes`` is True if it ends without a change of the manifest, so that such a start waits for its end.
    """

    severity: Severity
    code: str
    message: str
    hint: str = ""
    spares_others: bool = False
    passes: bool = False


def of_restart(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Return the problems as those of a pipeline that has run before, errors first.

    An error of one table is a warning then. It must not stop the stream of the others.
    """
    eased = (replace(p, severity=Severity.WARNING) if p.spares_others else p for p in problems)
    return tuple(sorted(eased, key=lambda p: p.severity is Severity.WARNING))
