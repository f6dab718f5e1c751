"""The staging area: a folder on any file system, and the few operations on it that segments need."""

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

import pyarrow as pa
import pyarrow.fs as pafs

from levada.errors import NeedsOperator, Transient
from levada.locations import FULL
from levada.private import create_private, private_file, private_folders, replace_file, sync

_ON_S3: Final = re.compile("s3[an]?://")
_NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS})
"""Errors of link() on file systems without hard links, such as SMB shares."""


@dataclass(frozen=True, slots=True)
class Staging:
    """A folder given by a path, ``file://…``, or the URI of an object store. Cheap to pickle: it connects when used.

    ``durable`` tells whether what was published outlives this machine's restart; only then may the slot be acknowledged
    for it. Paths are relative to the folder, with ``/`` between their parts.
    """

    uri: str
    durable: bool
    properties: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """How the object store is reached, by PyIceberg's names; none: as Arrow finds by itself. Holds secrets."""

    @classmethod
    def open(cls, uri: str, *, durable: bool | None = None, properties: Mapping[str, str] | None = None) -> Self:
        """Return the staging area at ``uri``; it is durable unless ``durable`` says that it is scratch.

        ``properties`` are for s3:// alone. Raise NeedsOperator ``staging_unusable`` if no file system answers to the
        URI.
        """
        where = uri if "://" in uri else str(Path(uri).absolute())
        used = sorted((properties or {}).items()) if _ON_S3.match(where) else ()
        staging = cls(where, durable is not False, tuple(used))
        staging._place()
        return staging

    def list(self, folder: str) -> Mapping[str, int]:
        """Return the names of the folder's files with their sizes in bytes; nothing if there is no such folder."""
        fs, root = self._place()
        with failures(f"list {folder}"):
            found = fs.get_file_info(pafs.FileSelector(f"{root}/{folder}", allow_not_found=True))
        return {i.base_name: i.size or 0 for i in found if i.type is pafs.FileType.File}

    def read(self, path: str) -> bytes:
        """Return a file's content."""
        with failures(f"read {path}"), self.input(path) as stream:
            return bytes(stream.read())

    def input(self, path: str) -> pa.NativeFile:
        """Open a file for reading at any position."""
        fs, root = self._place()
        with failures(f"read {path}"):
            return fs.open_input_file(f"{root}/{path}")

    def output(self, path: str) -> pa.NativeFile:
        """Open a new file for writing; an old one of that name is replaced."""
        fs, root = self._place()
        with self.writing(path):
            if self._local:
                private_folders(Path(root), Path(f"{root}/{path}").parent)
                create_private(f"{root}/{path}")
            return fs.open_output_stream(f"{root}/{path}")

    def publish(
        self, path: str, content: bytes, *, naming: Sequence[str], begun: Callable[[], None] = lambda: None
    ) -> None:
        """Make a file visible whole or not at all, after the files that it names are safe.

        Call ``begun`` before the step that makes it visible. After an error before that call there is no such file.
        """
        fs, root = self._place()
        with self.writing(path):
            if not self._local:
                begun()
                # An object appears when its upload is completed. Not a `with`: leaving it by an error completes it too.
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
        """Make a small file visible unless there is one of that name.

        On an object store, and on a file system without hard links, the last of several at the same moment wins.
        """
        _, root = self._place()
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
                _put_unless_there(temporary, f"{folder}/{name}")
            finally:
                with suppress(OSError):
                    os.unlink(temporary)
            self._sync(folder)

    def remove(self, path: str) -> None:
        """Remove a file; not an error if it is gone already."""
        fs, root = self._place()
        with failures(f"remove {path}"):
            try:
                fs.delete_file(f"{root}/{path}")
            except FileNotFoundError:
                return

    def probe(self) -> None:
        """Write, read and remove a small file; raise what capture would meet. Folders that it made are removed."""
        _, root = self._place()
        made = [] if not self._local else [p for p in (Path(root), *Path(root).parents) if not p.exists()]
        path = f".levada-check-{uuid.uuid4().hex}"
        try:
            self.publish(path, b"levada", naming=())
            self.read(path)
            self.remove(path)
        finally:
            for folder in made:
                with suppress(OSError):
                    folder.rmdir()

    @contextmanager
    def writing(self, path: str) -> Iterator[None]:
        """Turn errors of a write into those of `failures`, or Transient ``staging_full``, which names the place."""
        try:
            with failures(f"write {path}"):
                yield
        except Transient as error:
            cause = error.__cause__
            if not isinstance(cause, OSError) or cause.errno not in FULL:
                raise
            raise Transient(
                "staging_full",
                f"staging: {self.uri} has no room to write {path}{self._room()}: capture waits, and the source keeps "
                "its WAL until there is room",
                hint=f"give {self.uri} more room",
            ) from cause

    def _room(self) -> str:
        if not self._local:
            return ""
        with suppress(OSError):
            return f" ({shutil.disk_usage(self._place()[1]).free} bytes are free)"
        return ""

    def _place(self) -> tuple[pafs.FileSystem, str]:
        return _connect(self.uri, self.properties)

    @property
    def _local(self) -> bool:
        return isinstance(self._place()[0], pafs.LocalFileSystem)

    def _sync(self, path: str) -> None:
        if self.durable:
            sync(path)


def _put_unless_there(temporary: str, path: str) -> None:
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
    """Name what failed on the staging area, and who can mend it."""
    try:
        yield
    except FileNotFoundError as error:
        raise NeedsOperator("staging_file_missing", f"staging: cannot {action}: the file is not there") from error
    except PermissionError as error:
        raise NeedsOperator("staging_denied", f"staging: cannot {action}: {error}") from error
    except OSError as error:
        if error.errno == errno.EROFS:
            raise Transient(
                "staging_read_only",
                f"staging: cannot {action}: the file system is read-only",
                hint="mount the file system of spec.staging for writing",
            ) from error
        raise Transient("staging_unavailable", f"staging: cannot {action}: {error}") from error


@lru_cache(maxsize=16)
def _connect(uri: str, properties: tuple[tuple[str, str], ...]) -> tuple[pafs.FileSystem, str]:
    if "://" not in uri:
        return pafs.LocalFileSystem(), uri.rstrip("/")
    if properties:
        return _connect_as_lake(uri, dict(properties))
    try:
        fs, root = pafs.FileSystem.from_uri(uri)
    except pa.ArrowInvalid:
        fs, root = _connect_fsspec(uri)
    return fs, root.rstrip("/")


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
            "staging_unusable", f"staging: no file system for {uri.split('://')[0]}://: {error}"
        ) from error
    return pafs.PyFileSystem(pafs.FSSpecHandler(fs)), str(root)
