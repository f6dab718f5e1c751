"""The folder of a table that seems missing, with exceptions as Hadoop raises them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import pytest
from py4j.protocol import Py4JJavaError

from levada.destinations.iceberg.catalog_config import TableName
from levada.destinations.iceberg.java import Jvm
from levada.destinations.iceberg.table_folder import TableFolder
from levada.errors import AccessDenied, Transient


class JavaClass:
    """A class in Java with its ancestors."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def getSimpleName(self) -> str:
        return self._names[0]

    def getSuperclass(self) -> JavaClass | None:
        return JavaClass(*self._names[1:]) if len(self._names) > 1 else None


class Thrown:
    """An exception in Java, without a cause."""

    _target_id = "o1"
    _gateway_client = None

    def __init__(self, message: str, *classes: str) -> None:
        self._message, self._classes = message, classes

    def getClass(self) -> JavaClass:
        return JavaClass(*self._classes)

    def getMessage(self) -> str:
        return self._message

    def getCause(self) -> None:
        return None

    def getStackTrace(self) -> list[Any]:
        return []


class Folders:
    """Hadoop's paths and file system, which raises one exception for a folder."""

    hadoop_conf = None

    def __init__(self, thrown: Thrown | None) -> None:
        self._thrown = thrown

    def path(self, *parts: object) -> Folders:
        return self

    def getFileSystem(self, conf: None) -> Folders:
        return self

    def listStatus(self, path: Folders) -> list[Any]:
        if self._thrown is not None:
            raise Py4JJavaError("list", self._thrown)
        return []


def folder(thrown: Thrown | None) -> TableFolder:
    """Return a table's folder whose metadata folder raises this exception."""
    return TableFolder(cast(Jvm, Folders(thrown)), "file:///lake", TableName(("shop",), "orders"))


@pytest.mark.parametrize(
    "thrown",
    [
        Thrown("/lake/shop/orders/metadata: Permission denied", "AccessDeniedException", "PathIOException"),
        Thrown("Permission denied: user=levada, access=READ_EXECUTE", "AccessControlException", "IOException"),
        Thrown("/lake/shop/orders/metadata (Permission denied)", "FileNotFoundException", "IOException"),
    ],
    ids=lambda t: t.getClass().getSimpleName(),
)
def test_a_table_in_a_folder_that_may_not_be_read_is_not_missing(thrown: Thrown) -> None:
    """The place is refused, and the table is read again once it may be."""
    with pytest.raises(AccessDenied) as denied:
        folder(thrown).require_readable()
    assert denied.value.code == "destination_denied"


def test_a_folder_that_java_does_not_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Java reports one below a folder without permission as missing. The operating system says why."""
    missing = Thrown(f"File file:{tmp_path}/orders/metadata does not exist", "FileNotFoundException", "IOException")
    folder(missing).require_readable()
    folder(None).require_readable()

    def denied(path: str) -> None:
        raise PermissionError(13, os.strerror(13), path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", denied)
        with pytest.raises(AccessDenied):
            folder(missing).require_readable()


def test_a_storage_that_does_not_answer_has_no_missing_table() -> None:
    """The table is read again once it does."""
    away = Thrown("Connection refused", "ConnectException", "SocketException", "IOException")
    with pytest.raises(Transient) as unavailable:
        folder(away).require_readable()
    assert unavailable.value.code == "destination_unavailable"
