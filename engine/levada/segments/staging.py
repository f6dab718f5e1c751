"""The staging area: a folder on any file system or object store, and the operations on it that segments need."""

from __future__ import annotations

import errno
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final, Self
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pafs

from levada.errors import AccessDenied, NeedsOperator, Transient
from levada.locations import FULL
from levada.private import create_private, private_file, private_folders, replace_file, sync
from levada.segments.limits import FileLimits

_ON_S3: Final = re.compile("s3[an]?://")
_ONE_SLASH: Final = re.compile("^file:/(?!/)")
_NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS})
"""Errors of link() on file systems without hard links, such as SMB shares."""

_REFUSED: Final = re.compile(
    r"AWS Error (ACCESS_DENIED|INVALID_ACCESS_KEY_ID|INVALID_CLIENT_TOKEN_ID|SIGNATURE_DOES_NOT_MATCH"
    r"|MISSING_AUTHENTICATION_TOKEN|UNRECOGNIZED_CLIENT)|ExpiredToken|HTTP status 40[13]\b"
)
"""Errors of an object store that refuses the credentials. Arrow raises them as plain OSError."""


@dataclass(frozen=True, slots=True)
class Staging:
    """A staging folder, given by a path, ``file://…``, or the URI of an object store.

    Cheap to pickle, because it connects on first use. ``durable`` is True if published files survive a restart of this
    machine. Only then may the slot be acknowledged for staged changes. Paths are relative to the folder, and ``/``
    separates their parts.
    """

    uri: str
    durable: bool
    properties: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Properties of the object store by PyIceberg's names.

    If empty, Arrow's default configuration is used. May have secrets.
    """
    limits: FileLimits = field(default_factory=FileLimits, repr=False)

    @classmethod
    def open(cls, uri: str, *, durable: bool | None = None, properties: Mapping[str, str] | None = None) -> Self:
        """Return the staging area at ``uri``. It is durable unless ``durable`` is False.

        ``properties`` are used only for S3. Raise NeedsOperator ``staging_unusable`` if no file system supports the
        URI's scheme, and for a ``file:`` URI with the name of another host.
        """
        uri = _ONE_SLASH.sub("file:///", uri)
        where = uri if "://" in uri else str(Path(uri).absolute())
        used = sorted((properties or {}).items()) if _ON_S3.match(where) else ()
        staging = cls(where, durable is not False, tuple(used))
        staging._connected()
        return staging

    def list(self, folder: str) -> Mapping[str, int]:
        """Return the names of the folder's files with their sizes in bytes. A missing folder has no files."""
        fs, root = self._connected()
        with failures(f"list {folder} in {self.uri}"):
            found = fs.get_file_info(pafs.FileSelector(f"{root}/{folder}", allow_not_found=True))
        return {i.base_name: i.size or 0 for i in found if i.type is pafs.FileType.File}

    def free_bytes(self) -> int | None:
        """Return the free space of the folder's volume. None for an object store, and if it cannot be read."""
        _, root = self._connected()
        if not self._local:
            return None
        try:
            return shutil.disk_usage(root).free
        except OSError:
            return None

    def read(self, path: str) -> bytes:
        """Return the content of a file."""
        with failures(f"read {path} in {self.uri}"), self.input(path) as stream:
            return bytes(stream.read())

    def input(self, path: str) -> pa.NativeFile:
        """Open a file for random-access reads."""
        fs, root = self._connected()
        with failures(f"read {path} in {self.uri}"):
            return fs.open_input_file(f"{root}/{path}")

    def output(self, path: str) -> pa.NativeFile:
        """Open a file for writing. An existing file of that name is replaced."""
        fs, root = self._connected()
        with self.writing(path):
            if self._local:
                private_folders(Path(root), Path(f"{root}/{path}").parent)
                create_private(f"{root}/{path}")
            return fs.open_output_stream(f"{root}/{path}")

    def publish(
        self, path: str, content: bytes, *, naming: Sequence[str], begun: Callable[[], None] = lambda: None
    ) -> None:
        """Write a file atomically, after the files in ``naming``, to which it refers, are durable.

        ``begun`` is called before the step that makes the file visible. If an error is raised before that call, the
        file does not exist. If it is raised later, the file may exist.
        """
        fs, root = self._connected()
        with self.writing(path):
            if not self._local:
                begun()
                # An object appears when its upload completes. A `with` statement would complete it after an error too.
                stream = fs.open_output_stream(f"{root}/{path}")
                stream.write(content)
                stream.close()
                return
            folder, _, name = f"{root}/{path}".rpartition("/")
            private_folders(Path(root), Path(folder))
            for named in naming:
                self._sync(f"{root}/{named}")
            replace_file(Path(folder, name), content, durable=self.durable, begun=begun)

    def create(self, path: str, content: bytes) -> None:
        """Write a small file unless it exists.

        A file system with hard links does this atomically. Without them, of several writers at the same moment the last
        one wins. On an object store an existing file is always replaced, so check for it before.
        """
        _, root = self._connected()
        if not self._local:
            self.publish(path, content, naming=())
            return
        with self.writing(path):
            folder, _, name = f"{root}/{path}".rpartition("/")
            private_folders(Path(root), Path(folder))
            temporary = f"{folder}/.{name}.{uuid.uuid4().hex}"
            try:
                with private_file(temporary, "wb") as file:
                    file.write(content)
                self._sync(temporary)
                _link_unless_exists(temporary, f"{folder}/{name}")
            finally:
                with suppress(OSError):
                    os.unlink(temporary)
            self._sync(folder)

    def sync(self, folder: str) -> None:
        """Wait until the files of a folder are on the disk. Those of scratch staging may not be."""
        _, root = self._connected()
        with self.writing(folder):
            for name in self.list(folder) if self._local else ():
                sync(f"{root}/{folder}/{name}")
            if self._local and Path(f"{root}/{folder}").is_dir():
                sync(f"{root}/{folder}")

    def remove(self, path: str) -> None:
        """Remove a file. A missing file is no error."""
        fs, root = self._connected()
        with failures(f"remove {path} in {self.uri}"):
            try:
                fs.delete_file(f"{root}/{path}")
            except FileNotFoundError:
                return

    def probe(self) -> None:
        """Check the staging area: write, read and remove a small file. Raise the errors that capture would get.

        Folders that the probe creates are removed again.
        """
        _, root = self._connected()
        with failures(f"read {self.uri}"):
            created = [] if not self._local else [p for p in (Path(root), *Path(root).parents) if not p.exists()]
        path = f".levada-check-{uuid.uuid4().hex}"
        try:
            self.publish(path, b"levada", naming=())
            self.read(path)
            self.remove(path)
        finally:
            for folder in created:
                with suppress(OSError):
                    folder.rmdir()

    @contextmanager
    def writing(self, path: str) -> Iterator[None]:
        """Convert errors of a write as `failures` does. Raise Transient ``staging_full`` if there is no space left."""
        try:
            with failures(f"write {path} in {self.uri}"):
                yield
        except Transient as error:
            cause = error.__cause__
            if not isinstance(cause, OSError) or cause.errno not in FULL:
                raise
            raise Transient(
                "staging_full",
                f"staging: no space left on {self.uri} to write {path}{self._free_space()}: capture waits, and the"
                " source retains its WAL until there is space",
                hint=f"free space on {self.uri}, or enlarge its volume",
            ) from cause

    def _free_space(self) -> str:
        if not self._local:
            return ""
        with suppress(OSError):
            return f" ({shutil.disk_usage(self._connected()[1]).free} bytes are free)"
        return ""

    def _connected(self) -> tuple[pafs.FileSystem, str]:
        return _connect(self.uri, self.properties)

    @property
    def _local(self) -> bool:
        return isinstance(self._connected()[0], pafs.LocalFileSystem)

    def _sync(self, path: str) -> None:
        if self.durable:
            sync(path)


def _link_unless_exists(temporary: str, path: str) -> None:
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if not os.path.exists(path):
            os.replace(temporary, path)


@contextmanager
def failures(action: str) -> Iterator[None]:
    """Convert errors of a file system to Transient or NeedsOperator. ``action`` completes 'cannot ...'."""
    try:
        yield
    except FileNotFoundError as error:
        raise NeedsOperator(
            "staging_file_missing",
            f"staging: cannot {action}: the file does not exist",
            hint="mount the volume of spec.staging, or copy the tables again: levada resync MANIFEST --all",
        ) from error
    except OSError as error:
        if isinstance(error, PermissionError) or _REFUSED.search(str(error)):
            raise AccessDenied(
                "staging_denied",
                f"staging: cannot {action}: {error}",
                hint="let this process read and write the folder or the bucket of spec.staging, or correct the keys of"
                " its object store",
            ) from error
        if error.errno == errno.EROFS:
            raise Transient(
                "staging_read_only",
                f"staging: cannot {action}: the file system is read-only",
                hint="mount the file system of spec.staging for writing",
            ) from error
        raise Transient(
            "staging_unavailable",
            f"staging: cannot {action}: {error}",
            hint="check the volume or the object store of spec.staging, and its credentials",
        ) from error


@lru_cache(maxsize=16)
def _connect(uri: str, properties: tuple[tuple[str, str], ...]) -> tuple[pafs.FileSystem, str]:
    if "://" not in uri:
        return pafs.LocalFileSystem(), uri.rstrip("/")
    if uri.startswith("file:"):
        return pafs.LocalFileSystem(), _path(uri).rstrip("/")
    if properties:
        return _connect_as_lake(uri, dict(properties))
    try:
        fs, root = pafs.FileSystem.from_uri(uri)
    except pa.ArrowInvalid:
        fs, root = _connect_fsspec(uri)
    return fs, root.rstrip("/")


def _path(uri: str) -> str:
    """Return the path of a ``file:`` URI.

    Arrow refuses a space in it, and ignores what follows a ``#`` or ``?``. Here only ``%`` has a meaning.
    """
    host, slash, path = uri.removeprefix("file://").partition("/")
    if host not in ("", "localhost"):
        raise NeedsOperator(
            "staging_unusable",
            f"staging: {uri} names a folder on the host {host}, and not one on this machine",
            hint=f"set spec.staging.uri: file:///{host}/{path}",
        )
    return unquote(slash + path)


def _connect_as_lake(uri: str, properties: dict[str, str]) -> tuple[pafs.FileSystem, str]:
    from pyiceberg.io.pyarrow import PyArrowFileIO

    scheme, bucket, path = PyArrowFileIO.parse_location(uri)
    return PyArrowFileIO(properties).fs_by_scheme(scheme, bucket), path.rstrip("/")


def _connect_fsspec(uri: str) -> tuple[pafs.FileSystem, str]:
    import fsspec

    try:
        fs, root = fsspec.core.url_to_fs(uri)
    except (ImportError, ValueError) as error:
        raise NeedsOperator(
            "staging_unusable",
            f"staging: no file system for {uri.split('://')[0]}://: {error}",
            hint="correct spec.staging.uri, or install the Python package of this file system",
        ) from error
    return pafs.PyFileSystem(pafs.FSSpecHandler(fs)), str(root)
