"""Checksums that cover every byte of a file, so that damage is detected before a value is read.

A data file has one CRC-32 for each block of 1 MiB, and they are stored in the manifest. So has each piece of a shared
file. A small document contains its
own checksum, see `seal`. A CRC-32 detects every error of up to 32 adjacent bits. It does not protect against forgery.
"""

from __future__ import annotations

import re
import zlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, Protocol

import pyarrow as pa

BLOCK: Final = 1 << 20
_CACHED_BLOCKS: Final = 4
"""The number of blocks that a reader caches. Adjacent columns share a block."""

_SEALED: Final = re.compile(rb'\{"version":(\d{1,9}),"crc32":"([0-9a-f]{8})","content":')


class DamageError(ValueError):
    """The bytes differ from those that were written."""


class VersionError(ValueError):
    """The document is intact, but this program does not support its format version."""


def seal(content: bytes, version: int) -> bytes:
    """Return a JSON document with ``content``, the format version, and the checksum of both.

    ``content`` is JSON too.
    """
    return b'{"version":%d,"crc32":"%08x","content":%b}' % (version, _checksum(content, version), content)


def unseal(document: bytes, *versions: int) -> bytes:
    """Return the content of a document that `seal` returned.

    Raise DamageError for a damaged document, and VersionError for an intact one of a version that is not given.
    """
    head = _SEALED.match(document)
    if head is None or not document.endswith(b"}"):
        raise DamageError("it is not a document with a checksum")
    content, found = document[head.end() : -1], int(head[1])
    if int(head[2], 16) != _checksum(content, found) or str(found).encode() != head[1]:
        raise DamageError("its checksum does not match")
    if found not in versions:
        known = " and ".join(map(str, versions))
        raise VersionError(f"it has version {found}, but this program reads version {known}")
    return content


def _checksum(content: bytes, version: int) -> int:
    return zlib.crc32(content, version)


class Sink(Protocol):
    """A writable file, such as Arrow's NativeFile."""

    def write(self, data: bytes, /) -> object:
        """Write the bytes."""

    def close(self) -> None:
        """Close the file."""


class ChecksumWriter:
    """A writable file that computes the checksums of its blocks. Closing it does not close the underlying file."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._blocks: list[int] = []
        self._size = 0
        self.closed = False

    @property
    def checksums(self) -> tuple[int, ...]:
        """The checksums of the blocks that were written so far."""
        return tuple(self._blocks)

    def write(self, data: bytes) -> int:
        """Write the bytes, and add them to the checksum if the underlying file raises no error."""
        self._sink.write(data)
        view = memoryview(data)
        while view:
            room = BLOCK - self._size % BLOCK
            if room == BLOCK:
                self._blocks.append(0)
            self._blocks[-1] = zlib.crc32(view[:room], self._blocks[-1])
            self._size += len(view[:room])
            view = view[room:]
        return len(data)

    def tell(self) -> int:
        """Return the number of written bytes."""
        return self._size

    def flush(self) -> None:
        """Do nothing, because nothing is buffered here."""

    def close(self) -> None:
        """Mark the file as closed."""
        self.closed = True

    def readable(self) -> bool:
        """Return False."""
        return False

    def writable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return False."""
        return False


def block_checksums(content: bytes) -> tuple[int, ...]:
    """Return the checksums of the blocks of the content."""
    view = memoryview(content)
    return tuple(zlib.crc32(view[at : at + BLOCK]) for at in range(0, len(view), BLOCK))


def read_verified(file: pa.NativeFile, offset: int, size: int, checksums: Sequence[int]) -> pa.Buffer:
    """Return the piece of ``size`` bytes at ``offset``. Raise DamageError if it differs from what was written.

    ``checksums`` has one CRC-32 for each block of the piece.
    """
    content = pa.py_buffer(file.read_at(size, offset))
    _check_content(content, size, checksums)
    return content


def open_verified(file: pa.NativeFile, size: int, checksums: Sequence[int], whole_bytes: int) -> pa.NativeFile:
    """Return a readable file that verifies every byte. Raise DamageError here, or when a damaged block is read.

    ``size`` is the number of bytes written, and ``checksums`` has one CRC-32 per block. A file up to
    ``whole_bytes`` is read in one piece.
    """
    if size > whole_bytes:
        return pa.PythonFile(ChecksumReader(file, size, checksums), "r")
    content = file.read_buffer()
    _check_content(content, size, checksums)
    return pa.BufferReader(content)


def _check_content(content: pa.Buffer, size: int, checksums: Sequence[int]) -> None:
    _check_size(content.size, size, checksums)
    view = memoryview(content)
    for number, checksum in enumerate(checksums):
        _check_block(view[number * BLOCK : (number + 1) * BLOCK], number, checksum)


def _check_size(found: int, size: int, checksums: Sequence[int]) -> None:
    if found != size:
        raise DamageError(f"it has {found} bytes, but {size} were written")
    if len(checksums) != -(-size // BLOCK):
        raise DamageError(f"it has {len(checksums)} checksums for {size} bytes")


def _check_block(block: bytes | memoryview, number: int, checksum: int) -> None:
    if zlib.crc32(block) != checksum:
        raise DamageError(f"its block of bytes from offset {number * BLOCK} on differs from what was written")


class Source(Protocol):
    """A readable file, such as Arrow's NativeFile."""

    def read_at(self, nbytes: int, offset: int, /) -> bytes:
        """Return the bytes at the offset, or fewer at the end of the file."""

    def size(self) -> int:
        """Return the file's size in bytes."""


class ChecksumReader:
    """A readable file that verifies each block before it returns bytes of it. Raises DamageError."""

    def __init__(self, source: Source, size: int, checksums: Sequence[int]) -> None:
        _check_size(source.size(), size, checksums)
        self._source = source
        self._size = size
        self._checksums = checksums
        self._at = 0
        self._cache: OrderedDict[int, bytes] = OrderedDict()
        self.closed = False

    def read(self, nbytes: int = -1) -> bytes:
        """Return the next ``nbytes`` bytes, or all remaining bytes if ``nbytes`` is negative."""
        end = self._size if nbytes < 0 else min(self._size, self._at + nbytes)
        parts = []
        while self._at < end:
            number, first = divmod(self._at, BLOCK)
            part = self._block(number)[first : first + end - self._at]
            parts.append(part)
            self._at += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def seek(self, offset: int, whence: int = 0) -> int:
        """Change the position as `io.IOBase.seek` does, and return it."""
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def close(self) -> None:
        """Drop the cached blocks."""
        self._cache.clear()
        self.closed = True

    def readable(self) -> bool:
        """Return True."""
        return True

    def writable(self) -> bool:
        """Return False."""
        return False

    def seekable(self) -> bool:
        """Return True."""
        return True

    def _block(self, number: int) -> bytes:
        cached = self._cache.get(number)
        if cached is not None:
            self._cache.move_to_end(number)
            return cached
        expected = min(BLOCK, self._size - number * BLOCK)
        block = bytes(self._source.read_at(expected, number * BLOCK))
        _check_block(block, number, self._checksums[number])
        self._cache[number] = block
        if len(self._cache) > _CACHED_BLOCKS:
            self._cache.popitem(last=False)
        return block
