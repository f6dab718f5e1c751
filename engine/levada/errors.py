"""Errors, grouped by who can resolve them. An error's type is its retry policy.

::

    LevadaError
    ├── Transient           retried with back-off: connections, timeouts, restarts, a slot still in use
    ├── NeedsOperator       parked until a manual retry: bad data, a missing privilege, an unsupported change
    │   ├── InvalidManifest the manifest is invalid
    │   ├── DecodeError     bytes that violate PostgreSQL's protocol
    │   ├── SlotLost        the slot no longer has the changes that the tables need
    │   ├── DestinationChanged  the destination's table was changed by another writer
    │   └── Unrepresentable a value that the destination's type cannot hold
    └── Permanent           never retried: the process exits
        └── StaleEpoch      a newer driver owns this pipeline

Every error has a stable ``code`` (lower_snake_case, listed in docs/errors.md) and a message that describes the problem
and its place. Its ``hint`` is the complete SQL, kubectl or levada command that resolves it, if there is one. No error
contains a secret or a row's values.
"""

from __future__ import annotations


class LevadaError(Exception):
    """The base class of every error that Levada raises deliberately."""

    def __init__(self, code: str, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} [{self.code}]" + (f"\n  hint: {self.hint}" if self.hint else "")

    def __reduce__(self) -> tuple[object, ...]:
        # Spark tasks raise these errors in worker processes. Pickle alone cannot pass the keyword-only hint.
        return (_rebuild, (type(self), self.code, self.message, self.hint))


def _rebuild(kind: type[LevadaError], code: str, message: str, hint: str) -> LevadaError:
    error = kind.__new__(kind)
    LevadaError.__init__(error, code, message, hint=hint)
    return error


class Transient(LevadaError):  # noqa: N818 - named after its retry policy
    """An error that another attempt may resolve. It is retried with back-off."""


class NeedsOperator(LevadaError):  # noqa: N818 - named after its retry policy
    """An error that a person must resolve. The table or pipeline is parked until a manual retry."""


class Permanent(LevadaError):  # noqa: N818 - named after its retry policy
    """An error that nothing in this process can resolve. The process exits."""


class InvalidManifest(NeedsOperator):
    """A manifest that is invalid. The message names each invalid field by its path."""


class DecodeError(NeedsOperator):
    """Input that violates PostgreSQL's protocol. The message names the LSN if it is known."""


class SlotLost(NeedsOperator):
    """A replication slot that is missing or invalidated while tables depend on it."""


class DestinationChanged(NeedsOperator):
    """A destination's table that another writer changed, or a part of which is missing."""


class Unrepresentable(NeedsOperator):
    """A value that the destination's type cannot hold, under the policy ``Error``."""


class StaleEpoch(Permanent):
    """A driver with a higher epoch has taken over the pipeline."""

    def __init__(self, mine: int, current: int) -> None:
        super().__init__(
            "stale_epoch",
            f"this process has epoch {mine}, but epoch {current} owns the pipeline",
            hint="another driver was started for this pipeline: stop one of the two",
        )
        self.current = current
