"""Errors, grouped by who can resolve them. The class is the retry policy.

::

    LevadaError
    ├── Transient           retried with back-off: connections, timeouts, restarts, a slot still in use
    │   └── Yielded         a copy that waits for other sessions, retried for as long as they last
    ├── NeedsOperator       needs a manual retry: bad data, a missing privilege, an unsupported change
    │   ├── LoginFailed     a login was refused. Retried for as long as it lasts, because the password may be changing
    │   ├── AccessDenied    the destination or the staging area refused access. Retried likewise
    │   ├── InvalidManifest the manifest cannot be read
    │   ├── DecodeError     bytes that violate PostgreSQL's protocol
    │   ├── SlotLost        the slot no longer has the changes that the tables need
    │   ├── DestinationChanged  the destination's table is not as Levada left it
    │   ├── StatementRefused  a statement that PostgreSQL refused. The stream tries again, a table does not
    │   └── Unrepresentable a value without a place in the destination's type
    └── Permanent           fatal: the process exits
        └── StaleEpoch      a newer driver owns this pipeline

Every error has a stable ``code`` (lower_snake_case, listed in docs/errors.md), a message with what is wrong and where,
and, where there is one, a ``hint``: the SQL, kubectl or levada command that resolves it. No error text holds a secret
or a row's values.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

__all__ = [
    "AccessDenied",
    "DecodeError",
    "DestinationChanged",
    "InvalidManifest",
    "LevadaError",
    "LoginFailed",
    "NeedsOperator",
    "Permanent",
    "SlotLost",
    "StaleEpoch",
    "StatementRefused",
    "Transient",
    "Unrepresentable",
    "Yielded",
]


class LevadaError(Exception):
    """The root of every error that Levada raises on purpose. Its class attributes are the retry policy."""

    retried: ClassVar[bool] = False
    """Whether a running engine tries again by itself, after a growing delay."""
    passes: ClassVar[bool] = False
    """Whether a running engine tries again what serves all tables, such as the stream, until the cause is removed."""
    counts: ClassVar[bool] = True
    """Whether it counts as a failed attempt. After ``retries.maxAttempts`` of them a table waits for `levada retry`.

    While the whole destination is away, none counts, and none of a refused login or access.
    """

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


def rebuild(class_name: str, code: str, message: str, hint: str) -> LevadaError:
    """Return an error that another process raised, by the name of its class. Unknown classes become NeedsOperator."""
    kinds = {kind.__name__: kind for kind in _classes(LevadaError)}
    return _rebuild(kinds.get(class_name, NeedsOperator), code, message, hint)


def _classes(kind: type[LevadaError]) -> Iterator[type[LevadaError]]:
    yield kind
    for subclass in kind.__subclasses__():
        yield from _classes(subclass)


def _rebuild(kind: type[LevadaError], code: str, message: str, hint: str) -> LevadaError:
    error = kind.__new__(kind)
    LevadaError.__init__(error, code, message, hint=hint)
    return error


class Transient(LevadaError):  # noqa: N818 - named for the policy that it is
    """Resolves itself: retried after a growing delay."""

    retried = True
    passes = True


class Yielded(Transient):
    """A copy that waits for sessions of the source, or for the stream. It is retried for as long as they last."""

    counts = False


class NeedsOperator(LevadaError):  # noqa: N818 - named for the policy that it is
    """Needs a person: parked until a retry is requested."""


class Permanent(LevadaError):  # noqa: N818 - named for the policy that it is
    """Cannot be resolved in this process, which exits."""


class LoginFailed(NeedsOperator):
    """A login that was refused, or whose credentials cannot be read.

    It is retried for as long as it lasts. A person can end the cause within minutes: a password is changed at the
    server and in its Secret one after the other.
    """

    retried = True
    passes = True


class AccessDenied(NeedsOperator):
    """A place of the destination or the staging area that may not be read or written. It is retried likewise."""

    retried = True
    passes = True


class InvalidManifest(NeedsOperator):
    """A manifest that cannot be read. The message names each field by its path."""


class DecodeError(NeedsOperator):
    """Input that violates PostgreSQL's protocol. The message names the LSN if it is known."""


class SlotLost(NeedsOperator):
    """A replication slot that is missing or invalidated while tables depend on it."""


class DestinationChanged(NeedsOperator):
    """A destination's table that another writer changed, or a part of which is missing."""


class StatementRefused(NeedsOperator):
    """A statement that a PostgreSQL server refused, for a privilege or an object that it lacks, for example.

    A table waits for a retry. The stream and the store never end a running engine for it, because a person can remove
    the cause within minutes.
    """

    passes = True


class Unrepresentable(NeedsOperator):
    """A value that the destination's type cannot hold, under the policy ``Error``."""


class StaleEpoch(Permanent):
    """A driver with a higher epoch has taken over the pipeline."""

    def __init__(self, mine: int, current: int) -> None:
        super().__init__(
            "stale_epoch",
            f"another engine has taken over this pipeline: its epoch is {current}, and that of this process is {mine}",
            hint="run one engine for each pipeline, and stop the others",
        )
        self.current = current
