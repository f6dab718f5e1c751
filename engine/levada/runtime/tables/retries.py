"""The Errored phase of a table after an error: when it is retried, or the command that it needs. Pure."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from levada import codes
from levada.errors import AccessDenied, LevadaError, LoginFailed, NeedsOperator, Permanent
from levada.runtime.config import RetryLimits
from levada.status import RetryPolicy
from levada.stores.phases import Errored
from levada.values import QualifiedTable

_COMMAND: Final = re.compile(
    r"(levada (?:(?:resync|retry) MANIFEST|verify MANIFEST --table))"
    r""" ('[^']*'(?:"'"'[^']*')*|[^\s';,]+\.[^\s';,]+?)(?=[.,;]?(?:\s|$))"""
)
"""A command with the name of a table. That of a table's error is its own."""


def as_levada_error(error: BaseException) -> LevadaError:
    """Return the error itself, or NeedsOperator ``internal_error`` for an exception that is no LevadaError."""
    if isinstance(error, LevadaError):
        return error
    return NeedsOperator(
        "internal_error",
        f"unexpected {type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}",
        hint="the log has the traceback. Report it, and retry the table: levada retry MANIFEST TABLE",
    )


AWAY: Final = frozenset(
    {
        codes.DESTINATION_ACCESS_DENIED,
        codes.DESTINATION_AUTH_FAILED,
        codes.DESTINATION_DATABASE_MISSING,
        codes.DESTINATION_DENIED,
        codes.DESTINATION_FULL,
        codes.DESTINATION_READ_ONLY,
        codes.DESTINATION_TLS_FAILED,
        codes.DESTINATION_UNAVAILABLE,
        codes.DESTINATION_UNREACHABLE,
        codes.WORK_DIR_FULL,
        codes.WORK_DIR_UNAVAILABLE,
    }
)
"""Codes of a destination or a disk that no table can be written to, unless another one is."""

SOURCE_AWAY: Final = frozenset(
    {
        codes.CREDENTIALS_UNREADABLE,
        codes.LOCK_TIMEOUT,
        codes.NO_FREE_SLOT,
        codes.NO_FREE_WAL_SENDER,
        codes.POOLER_UNSUPPORTED,
        codes.REPLICATION_PRIVILEGE_MISSING,
        codes.SESSION_TIMEOUT,
        codes.SLOT_EXISTS,
        codes.SNAPSHOT_GONE,
        codes.SOURCE_ACCESS_DENIED,
        codes.SOURCE_AUTH_FAILED,
        codes.SOURCE_BEHIND,
        codes.SOURCE_DATABASE_MISSING,
        codes.SOURCE_OUT_OF_RESOURCES,
        codes.SOURCE_READ_ONLY,
        codes.SOURCE_SILENT,
        codes.SOURCE_STANDBY,
        codes.SOURCE_STARTING,
        codes.SOURCE_STOPPING,
        codes.SOURCE_TLS_FAILED,
        codes.SOURCE_UNREACHABLE,
        codes.TABLE_LOCKED,
        codes.TOO_MANY_CONNECTIONS,
        codes.VERSION_UNSUPPORTED,
        codes.WAL_LEVEL_NOT_LOGICAL,
    }
)
"""Codes of sessions that the source or the network ended, that the source does not accept now, or that wait for others.
"""


def is_away(error: BaseException) -> bool:
    """Return True if an error may be that of the whole destination, so that no table can be written."""
    return isinstance(error, LevadaError) and error.retried and error.code in AWAY


def is_failure(error: BaseException) -> bool:
    """Return True if an error counts as a failed attempt of its table.

    A copy does not fail when it yields to other sessions or waits for them, nor while the source is away.
    """
    return not isinstance(error, LevadaError) or (error.counts and not (error.retried and error.code in SOURCE_AWAY))


def park(
    error: BaseException,
    attempt: int,
    limits: RetryLimits,
    now: datetime,
    *,
    alone: int | None = None,
    needs_resync: bool = False,
) -> Errored:
    """Return the phase of a table whose ``attempt``-th attempt in a row (from 1) failed with this error.

    A retried error is retried with back-off up to ``limits.max_attempts``. After that, and for any other error, a user
    must request the retry.

    ``alone`` is the number of these attempts after which another table was written, by default all of them. Of an error
    that may be that of the whole destination, only those count: it is retried for as long as no table can be written.
    Of a refusal that a person can take back within minutes, none counts: it is retried for as long as it lasts.

    With ``needs_resync``, the table missed changes and only a resync repairs it: no retry.
    """
    known = as_levada_error(error)
    policy, due = RetryPolicy.MANUAL_RETRY, None
    if needs_resync or isinstance(known, Permanent):
        policy = RetryPolicy.NO_RETRY
    elif known.retried and (_counted(known, attempt, alone, limits) < limits.max_attempts or not is_failure(known)):
        policy, due = RetryPolicy.TIMED_RETRY, now + timedelta(seconds=limits.delay(attempt))
    solution = known.hint
    if policy is RetryPolicy.MANUAL_RETRY and (not solution or (known.retried and "levada " not in solution)):
        # The hint of an error that is retried does not say how to retry it after the last attempt.
        solution = f"{solution or 'resolve the cause'}, then: levada retry MANIFEST TABLE"
    return Errored(
        code=known.code,
        reason=known.message,
        solution=solution,
        retry_policy=policy,
        attempts=attempt,
        next_retry=due,
    )


def _counted(error: LevadaError, attempt: int, alone: int | None, limits: RetryLimits) -> int:
    """Return the number of attempts that count. Without any retry, the first one does."""
    if limits.max_attempts <= 1:
        return attempt
    if isinstance(error, AccessDenied | LoginFailed):
        return 0
    return attempt if alone is None or not is_away(error) else alone


def with_new_name(parked: Errored, former: QualifiedTable, now: QualifiedTable) -> Errored:
    """Return the phase with the table's name in the solution's commands, and in place of its former name.

    That is in SQL of the solution, and where the reason begins with the table. Another table may have a former name,
    and the command must not reach that one.
    """
    solution = _COMMAND.sub(lambda found: f"{found[1]} {now.argument}", parked.solution)
    subject = re.compile(rf"\A(table )?{re.escape(str(former))}(?=[\s:])")
    reason = subject.sub(lambda found: f"{found[1] or ''}{now}", parked.reason)
    return replace(parked, reason=reason, solution=solution.replace(former.sql, now.sql))


def named(parked: Errored, table: QualifiedTable) -> Errored:
    """Return the phase with the table's present name, instead of ``TABLE`` or a former name in the solution.

    The error of a change has the name that the table had at that time. Another table may have it now.
    """
    parked = replace(parked, solution=parked.solution.replace("MANIFEST TABLE", f"MANIFEST {table.argument}"))
    arguments = [found[2] for found in _COMMAND.finditer(parked.solution)]
    for former in {QualifiedTable.parse(shlex.split(argument)[0]) for argument in arguments} - {table}:
        parked = with_new_name(parked, former, table)
    return parked


def of_resync(parked: Errored) -> Errored:
    """Return the error as that of a resync, which begins again by another request: a retry is for the table itself."""
    return replace(parked, solution=parked.solution.replace("levada retry MANIFEST", "levada resync MANIFEST"))


@dataclass(slots=True)
class RetryState:
    """The failed attempts of one table, from which the delay of the next one follows. Its methods write it."""

    attempts: int = 0
    """The number of failed attempts in a row."""
    alone: int = 0
    """The number of these after which another table was written, while this one failed again."""
    failed_at: float | None = None
    """The time of the last failure, in seconds of the monotonic clock."""
    reading: bool = False
    """True if the last failure was that of reading the watermark."""

    def failed(self, error: BaseException, written_at: float, now: float, *, reading: bool = False) -> int:
        """Count an error and return the number of the attempt, from 1.

        ``written_at`` is the time at which a table was last written, ``now`` that of the error, of the monotonic clock.
        """
        self.attempts += is_failure(error)
        self.alone += self.failed_at is not None and written_at > self.failed_at
        self.failed_at, self.reading = now, reading
        return max(1, self.attempts)

    def begin_again(self) -> None:
        """Count attempts from the beginning, after a success or a user's request."""
        self.attempts, self.alone, self.failed_at = 0, 0, None
