"""Reasons of Java's exceptions, by their causes."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from levada.destinations.iceberg.java_causes import Cause, Reason, reason_of

NETWORK = [
    ("ConnectException", "SocketException", "IOException", "Exception"),
    ("SocketTimeoutException", "InterruptedIOException", "IOException", "Exception"),
    ("UnknownHostException", "IOException", "Exception"),
    ("SSLHandshakeException", "SSLException", "IOException", "Exception"),
    ("ServiceUnavailableException", "RESTException", "RuntimeException", "Exception"),
    ("ApiCallTimeoutException", "SdkClientException", "RuntimeException", "Exception"),
    ("HttpTimeoutException", "IOException", "Exception"),
    ("ClosedByInterruptException", "AsynchronousCloseException", "ClosedChannelException", "IOException", "Exception"),
]
"""Classes of exceptions with their ancestors."""
NOT_FOUND = Cause(("NotFoundException", "RuntimeException"), "Failed to open input stream for file: file:/lake/x.avro")


def runtime(name: str, message: str = "") -> Cause:
    """Return an exception of this class."""
    return Cause((name, "RuntimeException", "Exception"), message)


def not_found(text: str) -> Cause:
    """Return Java's exception for a file that the operating system does not open."""
    return Cause(("FileNotFoundException", "IOException", "Exception"), f"/lake/x.metadata.json ({text})")


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (errno.ENOENT, Reason.DAMAGED),
        (errno.EISDIR, Reason.DAMAGED),
        (errno.EROFS, Reason.AWAY),
        (errno.EMFILE, Reason.AWAY),
        (errno.ENFILE, Reason.AWAY),
        (errno.EIO, Reason.AWAY),
        (errno.ESTALE, Reason.AWAY),
        (errno.ENOTCONN, Reason.AWAY),
        (errno.ETIMEDOUT, Reason.AWAY),
        (errno.EACCES, Reason.DENIED),
        (errno.EPERM, Reason.DENIED),
        (errno.ENOSPC, Reason.FULL),
        (errno.EDQUOT, Reason.FULL),
    ],
)
def test_a_file_that_is_not_opened(number: int, reason: Reason) -> None:
    """Java has one exception for all of them. The operating system's text decides, however it is wrapped."""
    text = os.strerror(number)
    outer = runtime("RuntimeIOException", "Failed to create file: file:/lake/x.metadata.json")
    shapes = [
        not_found(text),
        Cause(("FileSystemException", "IOException", "Exception"), f"/lake/x: {text}"),
        Cause(("FSError", "Error"), f"java.io.IOException: {text}"),
        Cause(("IOException", "Exception"), text),
    ]
    if reason is Reason.DAMAGED:
        shapes = shapes[:1]
    for inner in shapes:
        assert reason_of([outer, inner]) is reason
        assert reason_of([inner]) is reason
        if reason is not Reason.DAMAGED:
            assert reason_of([NOT_FOUND, inner]) is reason


@pytest.mark.parametrize("classes", NETWORK, ids=lambda c: c[0])
@pytest.mark.parametrize(
    "outer",
    [
        *("NotFoundException", "AvroRuntimeException", "JsonParseException", "IllegalArgumentException"),
        *("UncheckedIOException", "RuntimeIOException", "ValidationException"),
    ],
)
def test_a_connection_that_fails(classes: tuple[str, ...], outer: str) -> None:
    """It is no damage, whatever library reports it: a file that was not read to its end looks like a damaged one."""
    assert reason_of([runtime(outer), Cause(classes, "Connection refused")]) is Reason.AWAY


@pytest.mark.parametrize(
    "causes",
    [
        [NOT_FOUND],
        [runtime("NotFoundException", "Location does not exist: s3://lake/x"), runtime("NoSuchKeyException")],
        [runtime("RuntimeIOException"), Cause(("InvalidAvroMagicException", "IOException"), "Not an Avro data file")],
        [runtime("RuntimeIOException"), Cause(("SchemaParseException", "AvroRuntimeException"), "Undefined name")],
        [runtime("AvroRuntimeException"), Cause(("IOException",), "Block read partially, the data may be corrupt")],
        [runtime("UncheckedIOException"), Cause(("JsonParseException", "JsonProcessingException", "IOException"))],
        [runtime("RuntimeIOException", "Failed to open file: x"), Cause(("EOFException", "IOException"))],
        [runtime("RuntimeIOException", "Metadata file for version 3 is missing")],
        [
            runtime("SparkException", "Job aborted"),
            runtime("ParquetDecodingException", "could not verify page integrity"),
        ],
        [Cause(("NoSuchFileException", "FileSystemException", "IOException"), "/lake/x")],
    ],
)
def test_a_file_that_is_missing_or_cannot_be_parsed(causes: list[Cause]) -> None:
    """Nothing else is wrong, so the table is damaged."""
    assert reason_of(causes) is Reason.DAMAGED


def test_a_parser_that_fails_in_any_way() -> None:
    """Changed bytes of a manifest are an index out of bounds, a missing field or a wrong class somewhere below."""
    for name in ("ArrayIndexOutOfBoundsException", "IllegalArgumentException", "NullPointerException"):
        frames = ("java.util.ArrayList", "org.apache.iceberg.avro.ValueReaders$UnionReader", "levada.OpenTable")
        inner = Cause((name, "RuntimeException", "Exception"), "Index -23 out of bounds", frames=frames)
        assert reason_of([inner]) is Reason.DAMAGED
        assert reason_of([runtime("RuntimeIOException"), inner]) is Reason.DAMAGED
        elsewhere = Cause(inner.classes, "Invalid identifier", frames=("org.apache.iceberg.hadoop.HadoopCatalog",))
        assert reason_of([elsewhere]) is None
        assert reason_of([Cause(NETWORK[0], "Connection reset", frames=frames)]) is Reason.AWAY


def test_a_catalog_that_answers_with_a_page() -> None:
    """A proxy's response is no JSON. That is no file of the table."""
    page = [runtime("RESTException", "failed to parse response body"), Cause(("JsonParseException", "IOException"))]
    assert reason_of(page) is Reason.AWAY
    assert reason_of([runtime("RuntimeException"), Cause(("EOFException", "IOException"))]) is None


def test_refusals() -> None:
    """Credentials that are refused are no damage either."""
    for name in ("ForbiddenException", "NotAuthorizedException", "AccessDeniedException", "AccessControlException"):
        assert reason_of([NOT_FOUND, runtime(name)]) is Reason.DENIED
    assert (
        reason_of([runtime("S3Exception", "Forbidden (Service: S3, Status Code: 403, Request ID: x)")]) is Reason.DENIED
    )
    for state in ("28P01", "28000", "42501"):
        assert Cause(("PSQLException", "SQLException"), "no", state).is_refused_by_sql
    assert not Cause(("PSQLException", "SQLException"), "read-only", "25006").is_refused_by_sql


def test_a_file_that_is_there_again(tmp_path: Path) -> None:
    """Hadoop reports a local file as missing in the same words if it may not look. The file itself decides."""

    def seen(path: Path) -> Reason | None:
        [found] = {
            reason_of([Cause(("FileNotFoundException", "IOException"), f"File {scheme}{path} does not exist")])
            for scheme in ("file:", "")
        }
        return found

    assert seen(tmp_path / "gone") is Reason.DAMAGED
    (tmp_path / "there").touch()
    assert seen(tmp_path / "there") is Reason.AWAY
    assert seen(tmp_path / "there" / "below") is Reason.DAMAGED
    assert seen(tmp_path / ("n" * 300)) is Reason.AWAY
