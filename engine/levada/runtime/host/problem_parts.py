"""Problems from errors, for the checks before a start."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from levada.errors import LevadaError
from levada.postgres.problems import Problem, Severity


def warning_if(harmless: bool) -> Severity:
    """Return the severity of a problem that is an error unless it is harmless."""
    return Severity.WARNING if harmless else Severity.ERROR


def raised(check: Callable[[], object], severity: Severity = Severity.ERROR) -> Iterator[Problem]:
    """Yield the error that the check raises, as a problem."""
    try:
        check()
    except LevadaError as error:
        yield problem_of(error, severity)


def problem_of(error: LevadaError, severity: Severity = Severity.ERROR) -> Problem:
    """Return an error as a problem."""
    return Problem(severity, error.code, error.message, error.hint)
