"""A search for values that must not be on the disk, also in compressed files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

_FRAME = bytes.fromhex("28b52ffd")
"""The first bytes of a zstd frame (RFC 8878), by which Parquet's pages and Arrow's buffers are compressed."""


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
