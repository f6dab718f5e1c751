"""A search for values that must not be on the disk, also in compressed files."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

_FRAME = bytes.fromhex("28b52ffd")
"""The first bytes of a zstd frame (RFC 8878), by which Parquet's pages and Arrow's buffers are compressed."""


_AVRO, _GZIP = b"Obj\x01", b"\x1f\x8b"
_SYNC = 16
"""The bytes of the marker after the header and each block of an Avro file."""


def files_with(folder: Path, value: bytes) -> list[str]:
    """Return the files below a folder that have these bytes, by their paths. Files that vanish meanwhile have none."""
    found = []
    for path in sorted(folder.rglob("*")):
        try:
            data = path.read_bytes() if path.is_file() else b""
        except FileNotFoundError:
            continue
        if any(value in part for part in _parts(data)):
            found.append(str(path.relative_to(folder)))
    return found


def _parts(data: bytes) -> Iterator[bytes]:
    """Yield the bytes of a file, and of each compressed frame in it."""
    yield data
    if data.startswith(_AVRO):
        yield from _avro_blocks(data)
    if data.startswith(_GZIP):
        yield gzip.decompress(data)
    at = data.find(_FRAME)
    while at >= 0:
        with pa.CompressedInputStream(pa.BufferReader(data[at:]), "zstd") as stream:
            read = bytearray()
            try:
                while more := stream.read(1 << 16):
                    read += more
            except OSError:
                # What follows the frame is none, or the bytes are no frame.
                pass
        yield bytes(read)
        at = data.find(_FRAME, at + 1)


def _avro_blocks(data: bytes) -> Iterator[bytes]:
    """Yield the content of each block of an Avro file, as the manifests of Iceberg are (Avro 1.11, "Object Files")."""
    file = io.BytesIO(data[len(_AVRO) :])
    header = {}
    while count := _long(file):
        for _ in range(abs(count)):
            name = file.read(_long(file))
            header[name] = file.read(_long(file))
    file.read(_SYNC)
    while file.tell() < len(data) - len(_AVRO):
        _long(file)
        block = file.read(_long(file))
        yield zlib.decompress(block, -zlib.MAX_WBITS) if header.get(b"avro.codec") == b"deflate" else block
        file.read(_SYNC)


def _long(file: io.BytesIO) -> int:
    """Read a number in Avro's form."""
    number = shift = 0
    while True:
        byte = file.read(1)[0]
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1)
