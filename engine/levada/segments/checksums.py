"""Checksums that cover every byte of a file, so that damage is noticed before it is read as a value.

A data file has one CRC-32 for each block of 1 MiB, kept apart from the file. A small document has its checksum within,
see `seal`. A CRC-32 finds every error of up to 32 adjacent bits. It is no protection against forgery.
"""

from __future__ import annotations

import re
import zlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, Protocol

import pyarrow as pa

BLOCK: Final = 1 << 20
WHOLE_BYTES: Final = 32 << 20
"""Files up to this size are read and verified as a whole: then no byte passes through Python."""
_KEPT_BLOCKS: Final = 4
"""Blocks that a reader keeps: neighbouring columns share one."""

_SEALED: Final = re.compile(rb'\{"version":(\d{1,9}),"crc32":"([0-9a-f]{8})","content":')


class DamageError(ValueError):
    """The bytes are not those that were written."""


class VersionError(ValueError):
    """An intact document of a format that this program does not read."""


def seal(content: bytes, version: int) -> bytes:
    """Return a JSON document with ``content``, which is JSON too, its format's version and the checksum of both."""
    return b'{"version":%d,"crc32":"%08x","content":%b}' % (version, _checksum(content, version), content)


def unseal(document: bytes, version: int) -> bytes:
    """Return the content of what `seal` returned; raise DamageError, or VersionError for an intact one."""
    head = _SEALED.match(document)
    if head is None or not document.endswith(b"}"):
        raise DamageError("it is not a sealed document")
    content, found = document[head.end() : -1], int(head[1])
    if int(head[2], 16) != _checksum(content, found) or str(found).encode() != head[1]:
        raise DamageError("its checksum does not match")
    if found != version:
        raise VersionError(f"it has version {found}, this program reads {version}")
    return content


def _checksum(content: bytes, version: int) -> int:
    return zlib.crc32(content, version)


class Sink(Protocol):
    """A file that is written, like one of Arrow's."""

    def write(self, data: bytes, /) -> object:
        """Write the bytes."""

    def close(self) -> None:
        """Close the file."""


class ChecksumWriter:
    """A file for writing that computes the checksums of its blocks. Closing it does not close the one beneath."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._blocks: list[int] = []
        self._size = 0
        self.closed = False

    @property
    def checksums(self) -> tuple[int, ...]:
        """The checksum of each block that was written so far."""
        return tuple(self._blocks)

    def write(self, data: bytes) -> int:
        """Write the bytes; their checksum counts only once the file beneath has taken them."""
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
        """Return how many bytes were written."""
        return self._size

    def flush(self) -> None:
        """Do nothing: the file beneath decides."""

    def close(self) -> None:
        """Take no more."""
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


def open_verified(file: pa.NativeFile, size: int, checksums: Sequence[int]) -> pa.NativeFile:
    """Return a file of which no byte is read that is not verified; raise DamageError now, or when it is read."""
    if size > WHOLE_BYTES:
        return pa.PythonFile(ChecksumReader(file, size, checksums), "r")
    content = file.read_buffer()
    _check_size(content.size, size, checksums)
    view = memoryview(content)
    for number, checksum in enumerate(checksums):
        _check_block(view[number * BLOCK : (number + 1) * BLOCK], number, checksum)
    return pa.BufferReader(content)


def _check_size(found: int, size: int, checksums: Sequence[int]) -> None:
    if found != size:
        raise DamageError(f"it has {found} bytes, {size} were written")
    if len(checksums) != -(-size // BLOCK):
        raise DamageError(f"it has {len(checksums)} checksums for {size} bytes")


def _check_block(block: bytes | memoryview, number: int, checksum: int) -> None:
    if zlib.crc32(block) != checksum:
        raise DamageError(f"its bytes from {number * BLOCK} on are not those that were written")


class Source(Protocol):
    """A file that is read, like one of Arrow's."""

    def read_at(self, nbytes: int, offset: int, /) -> bytes:
        """Return the bytes at the offset, fewer at the file's end."""

    def size(self) -> int:
        """Return the file's size in bytes."""


class ChecksumReader:
    """A file for reading that verifies each block before it returns a byte of it; raises DamageError."""

    def __init__(self, source: Source, size: int, checksums: Sequence[int]) -> None:
        _check_size(source.size(), size, checksums)
        self._source = source
        self._size = size
        self._checksums = checksums
        self._at = 0
        self._kept: OrderedDict[int, bytes] = OrderedDict()
        self.closed = False

    def read(self, nbytes: int = -1) -> bytes:
        """Return the next bytes, all that are left if ``nbytes`` is negative."""
        end = self._size if nbytes < 0 else min(self._size, self._at + nbytes)
        parts = []
        while self._at < end:
            number, first = divmod(self._at, BLOCK)
            part = self._block(number)[first : first + end - self._at]
            parts.append(part)
            self._at += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a position, from the start, from here or from the end, as `io.IOBase.seek` does."""
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def close(self) -> None:
        """Let what is kept go."""
        self._kept.clear()
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
        kept = self._kept.get(number)
        if kept is not None:
            self._kept.move_to_end(number)
            return kept
        expected = min(BLOCK, self._size - number * BLOCK)
        block = bytes(self._source.read_at(expected, number * BLOCK))
        _check_block(block, number, self._checksums[number])
        self._kept[number] = block
        if len(self._kept) > _KEPT_BLOCKS:
            self._kept.popitem(last=False)
        return block
