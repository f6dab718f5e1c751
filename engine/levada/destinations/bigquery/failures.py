"""Errors of BigQuery's APIs as Levada's errors.

A message of BigQuery may contain a value of a row. It is shown only where no rows were involved.
"""

from __future__ import annotations

from typing import Final

from levada.errors import AccessDenied, LevadaError, LoginFailed, NeedsOperator, Transient

UNAVAILABLE: Final = "if this persists, check the network and the state of BigQuery: https://status.cloud.google.com"


_TRANSIENT: Final = frozenset(
    {
        "backendError",
        "internalError",
        "jobBackendError",
        "jobInternalError",
        "jobRateLimitExceeded",
        "quotaExceeded",
        "rateLimitExceeded",
        "stopped",
        "tableUnavailable",
        "timeout",
    }
)
"""Reasons of errors by BigQuery's reference "Error messages" that another attempt may resolve."""
_DENIED: Final = frozenset({"accessDenied", "billingNotEnabled", "blocked"})
# The text that BigQuery's documentation of multi-statement transactions has for a conflict.
_CONFLICT: Final = "aborted due to concurrent update"
_LARGEST: Final = 300


# The text of the limit of partitions that one job may change.
_PARTITIONS: Final = "Too many partitions"


class NotFoundError(NeedsOperator):
    """A dataset, table or job does not exist. The caller knows what is missing."""


class AlreadyExistsError(NeedsOperator):
    """A dataset, table or job exists already."""


def failure(what: str, status: int, reason: str, message: str, *, has_rows: bool = False) -> LevadaError:
    """Return the exception for an answer of BigQuery.

    ``status`` is the HTTP status, or 0 for a job's error. ``has_rows`` is True if ``message`` may contain values.
    """
    if reason == "notFound" or status == 404:
        hint = "restore the dataset or the table, then: levada retry MANIFEST TABLE"
        return NotFoundError("destination_table_missing", f"{what}: {message}", hint=hint)
    if reason == "duplicate" or status == 409:
        hint = "look at the table in BigQuery, then: levada retry MANIFEST TABLE"
        return AlreadyExistsError("destination_error", f"{what}: {message}", hint=hint)
    if _CONFLICT in message:
        return Transient("commit_conflict", f"{what}: another transaction changed the table")
    if _PARTITIONS in message:
        # The reason may be that of a quota, but another attempt has the same rows.
        return NeedsOperator(
            "destination_error",
            f"{what}: the rows are in more partitions than BigQuery takes in one job",
            hint="set a larger partitionUnit in spec.destination.bigquery.layouts, which copies the table again",
        )
    said = "" if has_rows else f": {message[:_LARGEST]}"
    if status == 401:
        return LoginFailed(
            "destination_login_failed",
            f"{what}: BigQuery refused the credentials",
            hint="check the Secret of spec.destination.bigquery.credentialsSecretRef, or the pod's identity",
        )
    if reason in _TRANSIENT or status == 429 or status >= 500:
        return Transient("destination_unavailable", f"{what}: {reason or status}{said}", hint=UNAVAILABLE)
    if reason in _DENIED or status == 403:
        return AccessDenied(
            "destination_denied",
            f"{what}: no permission ({reason}){said}",
            hint="grant the service account roles/bigquery.dataEditor on the datasets and roles/bigquery.jobUser",
        )
    return NeedsOperator(
        "destination_error",
        f"{what}: {reason or status}{said}",
        hint="look at the job in BigQuery, then: levada retry MANIFEST TABLE",
    )


def unanswered(what: str, error: BaseException) -> LevadaError:
    """Return the error for a connection that failed."""
    return Transient("destination_unavailable", f"{what}: {type(error).__name__}", hint=UNAVAILABLE)
