"""Errors, sorted by who can mend them; the type *is* the retry policy.

::

    LevadaError
    ├── Transient           retried with back-off: connections, timeouts, restarts, a slot still in use
    ├── NeedsOperator       retried when somebody says so: bad data, a missing privilege, an unsupported change
    │   ├── InvalidManifest the manifest cannot be read
    │   ├── DecodeError     bytes that are not what PostgreSQL's protocol says
    │   ├── SlotLost        the slot no longer has the changes that the tables need
    │   ├── DestinationChanged  the destination's table is not as Levada left it
    │   └── Unrepresentable a value without a place in the destination's type
    └── Permanent           never retried: the process must end
        └── StaleEpoch      a newer driver owns this pipeline

Every error has a stable ``code`` (lower_snake_case, listed in docs/errors.md), says what is wrong and where, and has a
``hint``: the exact SQL, kubectl or levada line that mends it, where there is one. No error text holds a secret or a
row's values.
"""

from __future__ import annotations


class LevadaError(Exception):
    """The root of every error that Levada raises on purpose."""

    def __init__(self, code: str, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} [{self.code}]" + (f"\n  hint: {self.hint}" if self.hint else "")

    def __reduce__(self) -> tuple[object, ...]:
        # Spark tasks raise these in worker processes; the keyword-only hint needs help to be pickled.
        return (_rebuild, (type(self), self.code, self.message, self.hint))


def _rebuild(kind: type[LevadaError], code: str, message: str, hint: str) -> LevadaError:
    error = kind.__new__(kind)
    LevadaError.__init__(error, code, message, hint=hint)
    return error


class Transient(LevadaError):  # noqa: N818 - named for the policy that it is
    """Mends itself: retried after a growing delay."""


class NeedsOperator(LevadaError):  # noqa: N818 - named for the policy that it is
    """Mended by a person: parked until a retry is asked for."""


class Permanent(LevadaError):  # noqa: N818 - named for the policy that it is
    """Mended by nothing in this process: it ends."""


class InvalidManifest(NeedsOperator):
    """A manifest that cannot be read; the message names each field by its path."""


class DecodeError(NeedsOperator):
    """Input that breaks PostgreSQL's protocol; the message names the LSN where it is known."""


class SlotLost(NeedsOperator):
    """The replication slot is missing or invalidated while tables depend on it."""


class DestinationChanged(NeedsOperator):
    """The destination's table is no longer as Levada left it: another writer changed it, or a part of it is gone."""


class Unrepresentable(NeedsOperator):
    """A value without a place in the destination's type, under the policy ``Error``."""


class StaleEpoch(Permanent):
    """A driver with a higher epoch has taken the pipeline over."""

    def __init__(self, mine: int, current: int) -> None:
        super().__init__(
            "stale_epoch",
            f"this process has epoch {mine}, but epoch {current} owns the pipeline",
            hint="another driver was started for this pipeline; stop one of the two",
        )
        self.current = current
