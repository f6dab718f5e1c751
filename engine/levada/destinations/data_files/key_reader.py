"""Reads the keys of a table's data files, for its key index."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa

from levada.destinations.data_files.layout import FileLayout, field_id
from levada.destinations.data_files.live_files import READERS, LiveFile, Positions
from levada.destinations.data_files.source_types import as_source, as_stored
from levada.destinations.data_files.storage import Storage
from levada.destinations.key_index.index import KeyIndex
from levada.destinations.keys import KeyEncoder, Keys
from levada.destinations.schema_changes import resync_hint
from levada.errors import NeedsOperator
from levada.schema import ReplicatedTableSchema


@dataclass(frozen=True, slots=True)
class KeyReader:
    """Reads the keys of rows in data files."""

    schema: ReplicatedTableSchema
    fields: tuple[pa.Field, ...]
    """The key columns in the data files, in key order."""
    seed: bytes
    missing: Mapping[int, pa.Array]
    """The key of rows in files that lack a key column, by its field ID, as arrays of one value in the file's type."""

    @classmethod
    def of(cls, schema: ReplicatedTableSchema, layout: FileLayout, seed: bytes) -> KeyReader:
        """Return a reader of the key columns. Raise NeedsOperator if the table lacks one of them.

        ``seed`` is the seed of the index.
        """
        fields = [layout.column(attnum) for attnum in schema.key]
        found = [f for f in fields if f is not None]
        if len(found) < len(fields):
            raise NeedsOperator(
                "schema_change_unsupported",
                f"{schema.name}: a column of the key is not in the table at the destination",
                hint=resync_hint(schema),
            )
        missing = {
            number: as_stored(layout.missing[number], f.type)
            for f in found
            if (number := field_id(f)) is not None and number in layout.missing
        }
        return cls(schema, tuple(found), seed, missing)

    def encode(self, columns: Sequence[pa.Array | pa.ChunkedArray]) -> Keys:
        """Return the keys of rows. ``columns`` are the key columns of the data files, in key order."""
        wanted = [c.type.arrow for c in self.schema.key_columns]
        return KeyEncoder(self.schema, self.seed).encode_columns(
            [as_source(column, kind) for column, kind in zip(columns, wanted, strict=True)]
        )

    def file_keys(self, storage: Storage, file: LiveFile) -> list[tuple[Keys, Positions]]:
        """Return the keys of a data file's rows with their positions, in blocks."""
        return [
            (self._without_null(rows), positions)
            for rows, positions in file.read(storage, self.fields, missing=self.missing)
        ]

    def _without_null(self, rows: pa.RecordBatch) -> Keys:
        """Return the keys of rows. A column that was no key when they were written may have NULL."""
        if any(column.null_count for column in rows.columns):
            raise NeedsOperator(
                "key_changed",
                f"a row of {self.schema.name} at the destination has NULL in a column of the key",
                hint=resync_hint(self.schema),
            )
        return self.encode(rows.columns)


def add_files(index: KeyIndex, reader: KeyReader, storage: Storage, files: Iterable[LiveFile]) -> None:
    """Add all rows of the data files to the index."""
    waiting = iter(files)
    with ThreadPoolExecutor(READERS) as pool:
        while wave := list(itertools.islice(waiting, READERS)):
            for file, blocks in zip(wave, pool.map(lambda f: reader.file_keys(storage, f), wave), strict=True):
                for keys, positions in blocks:
                    index.add_file(file.path, keys, positions)
