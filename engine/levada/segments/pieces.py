"""The shared file of a segment: the changes of its small tables, one piece after another.

A piece is an Arrow IPC stream that is compressed as a whole. For a few rows it costs a twentieth of a Parquet file to
write and to read, and it is smaller. A piece is read without the rest of the file.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import pyarrow as pa

from levada.segments.checksums import block_checksums
from levada.segments.staging import Staging

PIECE_BYTES: Final = 1 << 20
"""Arrow bytes up to which the rows of a table become a piece.

Above this size, a Parquet file is smaller, and a reader of few columns does not read the others.
"""
_WRITE_BYTES: Final = 4 << 20
"""Bytes that are collected before they are written."""
_SIZE_BYTES: Final = 8
_CODEC: Final = pa.Codec("zstd", compression_level=1)
_OPTIONS: Final = pa.ipc.IpcWriteOptions()


def encode_piece(rows: pa.RecordBatch) -> bytes:
    """Return the rows as a piece: the size of the IPC stream in 8 bytes, low byte first, and the compressed stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=_OPTIONS) as stream:
        stream.write_batch(rows)
    content = sink.getvalue()
    return b"".join((content.size.to_bytes(_SIZE_BYTES, "little"), _CODEC.compress(content)))


def decode_piece(piece: pa.Buffer) -> pa.RecordBatch:
    """Return the rows of a piece whose checksums were verified."""
    size = int.from_bytes(piece[:_SIZE_BYTES], "little")
    content = _CODEC.decompress(piece[_SIZE_BYTES:], decompressed_size=size)
    with pa.ipc.open_stream(content) as stream:
        return stream.read_next_batch()


class SharedFile:
    """An open shared file. It exists from the first piece on."""

    def __init__(self, staging: Staging, path: str) -> None:
        self.path = path
        self._staging = staging
        self._sink: pa.NativeFile | None = None
        self._collected: list[bytes] = []
        self._collected_bytes = 0
        self._size = 0

    def append(self, rows: pa.RecordBatch) -> tuple[int, int, tuple[int, ...]]:
        """Append the rows as a piece. Return its offset, its size, and the checksums of its blocks."""
        piece = encode_piece(rows)
        offset = self._size
        self._collected.append(piece)
        self._collected_bytes += len(piece)
        self._size += len(piece)
        if self._collected_bytes >= _WRITE_BYTES:
            self._write()
        return offset, len(piece), block_checksums(piece)

    def close(self) -> None:
        """Write the remaining pieces, and close the file. Do nothing without pieces."""
        if self._collected:
            self._write()
        if self._sink is not None:
            with self._staging.writing(self.path):
                self._sink.close()

    def discard(self) -> None:
        """Close the file and remove it."""
        self._collected.clear()
        if self._sink is None:
            return
        with suppress(OSError):  # the file is removed anyway
            self._sink.close()
        self._staging.remove(self.path)

    def _write(self) -> None:
        with self._staging.writing(self.path):
            if self._sink is None:
                self._sink = self._staging.output(self.path)
            self._sink.write(b"".join(self._collected))
        self._collected.clear()
        self._collected_bytes = 0
