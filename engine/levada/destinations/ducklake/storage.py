"""The folder of a DuckLake catalog's files, on a local file system or in an object store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyarrow import fs

from levada.destinations.data_files.storage import FileSystemStorage
from levada.errors import NeedsOperator, Transient
from levada.values import QualifiedTable, resync_command

_S3: Final = ("s3://", "s3a://")
_S3_PROPERTIES: Final = {
    "s3.endpoint": "endpoint_override",
    "s3.region": "region",
    "s3.access-key-id": "access_key",
    "s3.secret-access-key": "secret_key",
    "s3.session-token": "session_token",
}
"""Properties by PyIceberg's names, and the arguments of Arrow's file system."""
_HINT: Final = "set dataPath in the destination's settings to a folder's full path, or to the URI of an object store"


@dataclass(frozen=True, slots=True)
class LakeFolder:
    """A catalog's data path: a full path or a URI, which ends with a slash.

    ``properties`` are those of the object store, by PyIceberg's names. They may contain secrets.
    """

    uri: str
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)

    def storage(self, folder: str) -> FileSystemStorage:
        """Return the access to a folder, given by its full path or URI with a slash at its end."""
        file_system, _ = self._connected()
        return FileSystemStorage(self.path(folder), file_system)

    def path(self, location: str) -> str:
        """Return the path of a full path or URI in the file system, without a scheme."""
        _, root = self._connected()
        if location.startswith(self.uri):
            return f"{root}/{location[len(self.uri) :]}"
        return location.partition("://")[2] if "://" in location else location

    def location(self, path: str) -> str:
        """Return the full path or URI of a path below the data path."""
        _, root = self._connected()
        return self.uri + path[len(root) + 1 :]

    def require(self, folder: str, table: QualifiedTable) -> None:
        """Raise Transient ``destination_unavailable`` if the folder of a table that has files is missing.

        The folder below a file system that is not mounted lacks it. A file that is written there is lost with the
        mount. An object store has no folders.
        """
        path = Path(self.path(folder))
        if "://" not in self.uri and not path.is_dir():
            raise Transient(
                "destination_unavailable",
                f"the folder {path}, which has files of {table}, is missing",
                hint=f"mount the lake's file system again. If the files are gone for good: {resync_command(table)}",
            )

    def probe(self) -> None:
        """Raise the error of the file system if the folder's parent cannot be listed."""
        file_system, root = self._connected()
        file_system.get_file_info(root)

    def _connected(self) -> tuple[fs.FileSystem, str]:
        return _connect(self.uri, tuple(sorted(self.properties.items())))


def data_path(text: str) -> str:
    """Return a data path with a slash at its end. Raise NeedsOperator for a relative path."""
    path = text.removeprefix("file://")
    if "://" not in path and not path.startswith("/"):
        raise NeedsOperator("data_path_unusable", f"the data path {text} is relative", hint=_HINT)
    return path.rstrip("/") + "/"


@lru_cache(maxsize=16)
def _connect(uri: str, properties: tuple[tuple[str, str], ...]) -> tuple[fs.FileSystem, str]:
    if "://" not in uri:
        return fs.LocalFileSystem(), uri.rstrip("/")
    if uri.startswith(_S3):
        return _s3(dict(properties)), uri.partition("://")[2].rstrip("/")
    try:
        file_system, root = fs.FileSystem.from_uri(uri)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        file_system, root = _fsspec(uri)
    return file_system, root.rstrip("/")


def _s3(properties: Mapping[str, str]) -> fs.FileSystem:
    found = {arg: properties[name] for name, arg in _S3_PROPERTIES.items() if name in properties}
    scheme, colon, address = found.get("endpoint_override", "").partition("://")
    if colon:
        found |= {"scheme": scheme, "endpoint_override": address.rstrip("/")}
    return fs.S3FileSystem(**found)


def _fsspec(uri: str) -> tuple[fs.FileSystem, str]:
    import fsspec

    try:
        found, root = fsspec.core.url_to_fs(uri)
    except (ImportError, ValueError) as error:
        raise NeedsOperator(
            "data_path_unusable", f"no file system for {uri.split('://')[0]}://: {error}", hint=_HINT
        ) from error
    return fs.PyFileSystem(fs.FSSpecHandler(found)), str(root)
