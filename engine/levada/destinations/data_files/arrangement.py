"""Rows arranged for a table with partitions or a sort order: each file has rows of one partition, sorted.

The arrangement itself belongs to the table's format. One file is open at a time, whatever the number of partitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from levada.destinations.data_files.data_writer import ROW_GROUP_ROWS, DataWriter
from levada.destinations.data_files.layout import FileLayout, Order, Part
from levada.destinations.data_files.storage import Storage, WrittenFile, remove_files

BUFFER_BYTES: Final = 64 << 20
"""The Arrow bytes of a copy's rows that are arranged together. More would make fewer files, and need more memory."""


def arranged(layout: FileLayout, rows: pa.Table) -> tuple[Order | None, Sequence[Part]]:
    """Return the order and the parts of the rows under the layout's arrangement. The order is None without one."""
    if layout.arrangement is None:
        return None, [Part(None, 0, rows.num_rows)]
    return layout.arrangement.arrange(rows)


def write_parts(storage: Storage, layout: FileLayout, rows: pa.Table, parts: Sequence[Part]) -> list[WrittenFile]:
    """Write arranged rows to the files of their parts, in this order. After an error no file is left."""
    files: list[WrittenFile] = []
    try:
        for part in parts:
            with DataWriter(storage, layout.arrow, partition=part.partition) as writer:
                for begin in range(part.begin, part.end, ROW_GROUP_ROWS):
                    writer.write(rows.slice(begin, min(ROW_GROUP_ROWS, part.end - begin)))
            files += writer.files
    except BaseException:
        remove_files(storage, files)
        raise
    return files


class ArrangedWriter:
    """Writes rows to data files in the arrangement of their layout. Without one it is a `DataWriter`.

    It is a context manager. If the context ends with an error, the files are removed.
    """

    def __init__(self, storage: Storage, layout: FileLayout) -> None:
        self._storage = storage
        self._layout = layout
        self._plain = DataWriter(storage, layout.arrow)
        self._waiting: list[pa.Table] = []
        self._bytes = 0
        self._files: list[WrittenFile] = []

    @property
    def files(self) -> list[WrittenFile]:
        """The complete files. After the end of the context, all files."""
        return self._files or self._plain.files

    def write(self, rows: pa.Table) -> None:
        """Add rows with the columns of the layout."""
        if self._layout.arrangement is None:
            self._plain.write(rows)
            return
        self._waiting.append(rows)
        self._bytes += rows.nbytes
        if self._bytes >= BUFFER_BYTES:
            self._flush()

    def __enter__(self) -> ArrangedWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        try:
            self._plain.__exit__(kind, error, trace)
            if kind is None:
                self._flush()
        except BaseException:
            remove_files(self._storage, self._files)
            raise
        if kind is not None:
            remove_files(self._storage, self._files)

    def _flush(self) -> None:
        if not self._waiting:
            return
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        rows = pa.concat_tables(waiting).combine_chunks()
        waiting.clear()
        order, parts = arranged(self._layout, rows)
        rows = rows.take(order)
        self._files += write_parts(self._storage, self._layout, rows, parts)
