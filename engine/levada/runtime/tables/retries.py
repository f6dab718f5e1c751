"""What an error means for a table: parked for how long, and who brings it back. Pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from levada.errors import LevadaError, NeedsOperator, Permanent
from levada.runtime.config import RetryLimits
from levada.stores.phases import Errored, RetryPolicy
from levada.values import QualifiedTable


def as_levada_error(error: BaseException) -> LevadaError:
    """Return the error itself, or what an unexpected one is for a user: something to report, and to retry by hand."""
    if isinstance(error, LevadaError):
        return error
    return NeedsOperator(
        "internal_error",
        f"unexpected {type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}",
        hint="the log has the traceback; retry the table with: levada retry MANIFEST TABLE",
    )


def is_failure(error: BaseException) -> bool:
    """Return True if an error counts as a failed attempt."""
    return not isinstance(error, LevadaError) or error.counts


def park(
    error: BaseException, attempt: int, limits: RetryLimits, now: datetime, *, needs_resync: bool = False
) -> Errored:
    """Return the phase of a table whose ``attempt``-th try in a row (from 1) ended with this error.

    What mends itself is retried until the attempts are used up; then, as for any other error, somebody must ask.
    ``needs_resync``: changes of the table were left out, so that no retry but only a new copy makes it right.
    """
    known = as_levada_error(error)
    policy, due = RetryPolicy.MANUAL_RETRY, None
    if needs_resync or isinstance(known, Permanent):
        policy = RetryPolicy.NO_RETRY
    elif known.retried and (attempt < limits.max_attempts or not is_failure(known)):
        policy, due = RetryPolicy.TIMED_RETRY, now + timedelta(seconds=limits.delay(attempt))
    solution = known.hint
    if policy is RetryPolicy.MANUAL_RETRY and not solution:
        solution = "resolve the cause, then: levada retry MANIFEST TABLE"
    return Errored(
        code=known.code,
        reason=known.message,
        solution=solution,
        retry_policy=policy,
        attempts=attempt,
        next_retry=due,
    )


def named(parked: Errored, table: QualifiedTable) -> Errored:
    """Return the phase with the table's name in the command of its solution, whose author may not have known it."""
    return replace(parked, solution=parked.solution.replace("MANIFEST TABLE", f"MANIFEST {table.argument}"))
