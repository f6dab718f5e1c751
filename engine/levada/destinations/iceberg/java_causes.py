"""Reasons of Java's exceptions, by their causes. Pure, but for a look at a local file.

Java has one exception, ``FileNotFoundException``, for a file that is missing and for one that the operating system does
not open for any other reason: a read-only file system, a missing permission, too many open files. Libraries wrap all of
them. So an exception is judged by its whole chain of causes, and a missing file only counts if no other cause is there.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from levada.locations import FULL


class Reason(Enum):
    """The reason of an exception, as far as it concerns files and connections."""

    AWAY = auto()
    """The storage or the catalog does not answer, or cannot be written for now."""
    FULL = auto()
    DENIED = auto()
    DAMAGED = auto()
    """A file is missing, or cannot be parsed."""


@dataclass(frozen=True, slots=True)
class Cause:
    """An exception of a chain. ``classes`` has the simple names of its class and of that class's ancestors."""

    classes: tuple[str, ...]
    message: str = ""
    sql_state: str = ""
    frames: tuple[str, ...] = ()
    """The classes whose methods it was thrown in, innermost first."""

    @property
    def name(self) -> str:
        """The simple name of the class."""
        return self.classes[0]

    @property
    def is_refused_by_sql(self) -> bool:
        """True if a catalog's database refuses the login, or a statement for lack of a privilege."""
        return self.sql_state.startswith(_SQL_DENIED)


_AWAY: Final = frozenset(
    {
        # Java and its network libraries. Subclasses are ConnectException, SocketTimeoutException and others.
        *("SocketException", "InterruptedIOException", "UnknownHostException", "UnresolvedAddressException"),
        *("SSLException", "ClosedChannelException", "TimeoutException", "HttpTimeoutException"),
        *("NoHttpResponseException", "ConnectionClosedException", "ReadOnlyFileSystemException"),
        # The SDK of AWS.
        *("AbortedException", "ApiCallTimeoutException", "ApiCallAttemptTimeoutException"),
        # Iceberg's client of REST catalogs.
        *("ServiceUnavailableException", "UncheckedInterruptedException"),
    }
)
"""Classes of a connection or a storage that fails for now."""
_UNPARSED_ANSWER: Final = "RESTException"
"""Iceberg's exception for a response that is no JSON, as that of a proxy. Its subclasses have their own reasons."""
_DENIED: Final = ("NotAuthorizedException", "ForbiddenException", "AccessDenied", "AccessControlException")
_REFUSED_BY_S3: Final = re.compile(r"\(Service: S3, Status Code: 40[13]\b")
_SQL_DENIED: Final = ("28", "42501")
"""SQLSTATEs of a login that the server refuses, and of a missing privilege."""
_MISSING: Final = ("NotFoundException", "FileNotFoundException", "NoSuchFileException")
_UNPARSABLE: Final = ("Json", "InvalidAvroMagic", "AvroRuntime", "ParquetDecoding")
"""Prefixes of the names of exceptions for a file that cannot be parsed."""
_PARSERS: Final = (
    "org.apache.avro.",
    *(f"org.apache.iceberg.{name}" for name in ("avro.", "InternalData", "Manifest", "TableMetadataParser")),
)
"""Classes that parse the files of a table's metadata, by the beginning of their names."""
_MISSING_METADATA: Final = ("Metadata file for version", "Server error: NotFoundException")
"""Messages of a Hadoop catalog and of a REST server if the newest metadata file is missing."""
_TEXTS: Final = {os.strerror(number): number for number in errno.errorcode}
_ERRNO: Final = re.compile(rf"(?:^|[:(]\s?)({'|'.join(sorted(map(re.escape, _TEXTS), key=len, reverse=True))})\)?$")
"""The operating system's text at the end of a message. Java has no number."""
_HADOOP_MISSING: Final = re.compile(r"File (?:file:)?(/.*) does not exist\.?")
_ABSENT: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR})


def reason_of(causes: Sequence[Cause]) -> Reason | None:
    """Return the reason of an exception by its causes, outermost first, or None if it is another one."""
    found = [reason for cause in causes if (reason := _reason(cause)) is not None]
    # The connection to a catalog may fail with an EOFException too.
    if any("EOFException" in c.classes for c in causes) and any("Failed to open file" in c.message for c in causes):
        found.append(Reason.DAMAGED)
    if not found and any(frame.startswith(_PARSERS) for frame in causes[-1].frames):
        # Bytes that are wrong anywhere make a parser fail in any way, with an index that is out of bounds for example.
        found.append(Reason.DAMAGED)
    # A cause of a file that is missing may be a file system that does not answer, and never the other way round.
    return next((r for r in (Reason.DENIED, Reason.FULL, Reason.AWAY, Reason.DAMAGED) if r in found), None)


def _reason(cause: Cause) -> Reason | None:
    if cause.name.startswith(_DENIED) or cause.is_refused_by_sql or _REFUSED_BY_S3.search(cause.message):
        return Reason.DENIED
    if not _AWAY.isdisjoint(cause.classes) or cause.name == _UNPARSED_ANSWER:
        return Reason.AWAY
    if (number := _errno(cause.message)) is not None:
        return _of_errno(number)
    missing = cause.name.startswith(_MISSING) or any(words in cause.message for words in _MISSING_METADATA)
    return Reason.DAMAGED if missing or any(c.startswith(_UNPARSABLE) for c in cause.classes) else None


def _errno(message: str) -> int | None:
    """Return the operating system's error of a message, or None. A local file that Hadoop does not see is looked up."""
    first = message.strip().partition("\n")[0].strip()
    if (text := _ERRNO.search(first)) is not None:
        return _TEXTS[text[1]]
    if (local := _HADOOP_MISSING.search(first)) is None:
        return None
    try:
        # A file that is there again was away for a moment.
        os.stat(local[1])
    except OSError as error:
        return error.errno
    return errno.EAGAIN


def _of_errno(number: int) -> Reason:
    if number in FULL:
        return Reason.FULL
    if number in (errno.EACCES, errno.EPERM):
        return Reason.DENIED
    return Reason.DAMAGED if number in _ABSENT else Reason.AWAY
