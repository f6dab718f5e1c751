"""Keeps a key index up to date with its table: adds data files, reads new snapshots, or rebuilds the index."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from levada.destinations.iceberg.columns import as_source
from levada.destinations.iceberg.files import Positions
from levada.destinations.iceberg.index import KeyIndex
from levada.destinations.iceberg.metadata import Snapshot
from levada.destinations.iceberg.scan import READERS, LiveFile, live_files, without_deletes
from levada.destinations.iceberg.schema import IcebergSchema, NestedField, unsupported
from levada.destinations.iceberg.table import IcebergTable
from levada.destinations.keys import KeyEncoder, Keys
from levada.schema import ReplicatedTableSchema

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KeyReader:
    """Reads the keys of an Iceberg table's rows."""

    schema: ReplicatedTableSchema
    fields: tuple[NestedField, ...]
    """The key columns in the Iceberg table, in key order."""
    seed: bytes

    @classmethod
    def of(cls, schema: ReplicatedTableSchema, layout: IcebergSchema, seed: bytes) -> KeyReader:
        """Return a reader of the key columns. Raise NeedsOperator if the table lacks one of them.

        ``seed`` is the seed of the index.
        """
        fields = [layout.column(attnum) for attnum in schema.key]
        found = [f for f in fields if f is not None]
        if len(found) < len(fields):
            raise unsupported(schema, "a column of the key is not in the Iceberg table")
        return cls(schema, tuple(found), seed)

    def encode(self, columns: Sequence[pa.Array | pa.ChunkedArray]) -> Keys:
        """Return the keys of rows. ``columns`` are the Iceberg table's key columns in key order."""
        wanted = [c.type.arrow for c in self.schema.key_columns]
        return KeyEncoder(self.schema, self.seed).encode_columns(
            [as_source(column, kind) for column, kind in zip(columns, wanted, strict=True)]
        )

    def file_keys(self, io: FileIO, file: LiveFile) -> list[tuple[Keys, Positions]]:
        """Return the keys of a data file's rows with their positions, in blocks."""
        return [(self.encode(rows.columns), positions) for rows, positions in file.read(io, self.fields)]


def add_files(index: KeyIndex, reader: KeyReader, io: FileIO, files: Iterable[LiveFile]) -> None:
    """Add all rows of the data files to the index."""
    waiting = iter(files)
    with ThreadPoolExecutor(READERS) as pool:
        while wave := list(itertools.islice(waiting, READERS)):
            for file, blocks in zip(wave, pool.map(lambda f: reader.file_keys(io, f), wave), strict=True):
                for keys, positions in blocks:
                    index.add_file(file.path, keys, positions)


def sync_index(index: KeyIndex, table: IcebergTable, reader: KeyReader, pipeline: str) -> None:
    """Update the index to the table's current snapshot, and commit it.

    For commits of this pipeline, and for any compaction, only the added files are read. After any other commit, or if
    the index's snapshot is not in the table's history, the index is rebuilt from all data files.
    """
    current = table.metadata.snapshot_id
    if current is None:
        index.clear()
        return
    if index.snapshot_id == current:
        return
    gap = _gap(index, table, pipeline)
    if gap is None:
        rebuild(index, table, reader)
        return
    _log.info("%s: updating the key index over %d snapshots", table.name, len(gap))
    io = table.storage().io()
    added: dict[str, None] = {}
    for snapshot in gap:
        changed = table.changed_files(snapshot.id)
        if changed is None:
            rebuild(index, table, reader)
            return
        plus, minus = changed
        if len(plus) > 1 and snapshot.operation == "overwrite":
            # A large batch may have one key in several files, and the snapshot does not show which file was written
            # last.
            rebuild(index, table, reader)
            return
        added |= dict.fromkeys(plus)
        for path in minus:
            added.pop(path, None)
        index.remove_files(minus)
    add_files(index, reader, io, (without_deletes(path) for path in added))
    index.commit(current)


def _gap(index: KeyIndex, table: IcebergTable, pipeline: str) -> list[Snapshot] | None:
    """Return the snapshots since the index's one, oldest first, or None if the index must be rebuilt."""
    if index.snapshot_id is None:
        return None
    gap: list[Snapshot] = []
    for snapshot in table.metadata.history:
        if snapshot.id == index.snapshot_id:
            return gap[::-1]
        ours = snapshot.mark is not None and snapshot.mark.pipeline == pipeline
        if not ours and snapshot.operation != "replace":
            return None
        gap.append(snapshot)
    return None


def rebuild(index: KeyIndex, table: IcebergTable, reader: KeyReader) -> None:
    """Rebuild the index from the key columns of all data files, and commit it for the current snapshot."""
    _log.info("%s: rebuilding the key index", table.name)
    index.clear()
    files = live_files(table)
    current = table.metadata.snapshot_id
    assert current is not None
    add_files(index, reader, table.storage().io(), files)
    index.commit(current)
