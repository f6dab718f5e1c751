"""The checksums of the remaining rows of data files, for a comparison with the source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from levada.destinations.arrow_text import NULL_FRAME, framed, shown_text
from levada.destinations.data_files.key_bounds import KeyBounds
from levada.destinations.data_files.layout import FileLayout, field_id, names_by_id
from levada.destinations.data_files.live_files import LiveFile, Positions, open_parquet
from levada.destinations.data_files.source_types import as_source
from levada.destinations.data_files.storage import Storage, table_file
from levada.destinations.kept_values import NoConversionError
from levada.destinations.row_hashes import HashedRows, RowHasher, summed_chunks
from levada.destinations.verification import CHUNKS, DIGESTS, PLACE, Comparison
from levada.errors import NeedsOperator
from levada.schema import Column
from levada.schema.types import repeated

_FILE_BITS: Final = 40
PLACES: Final = pa.schema([*DIGESTS, (PLACE, pa.int64())])
"""The digests of rows in data files. A place has the number of the file, and the position in its lower 40 bits."""


@dataclass(frozen=True, slots=True)
class FileHashes:
    """Computes the hashes of rows in data files with ``layout``. It is pickled into tasks.

    ``files`` has the number of each file of a version, by which places name it. ``mark`` is the column that marks
    deleted rows, if the comparison needs only some rows.
    """

    storage: Storage
    layout: FileLayout
    comparison: Comparison
    files: Sequence[tuple[int, LiveFile]]
    mark: pa.Field | None = None

    def chunks(self) -> pa.Table:
        """Return the checksums by chunk, in the schema `CHUNKS`."""
        hasher = self._hasher
        parts = [hasher.chunks(rows) for rows in self._hashed(())]
        return summed_chunks(pa.concat_tables(parts)) if parts else CHUNKS.empty_table()

    def by_key(self, chunks: Sequence[int] | None, places: pa.Array | None = None) -> pa.Table:
        """Return the checksums by key, in `Comparison.rows_schema`: of some chunks, or of the rows at some places."""
        hasher, found = self._hasher, [self.comparison.rows_schema.empty_table()]
        for rows in self._hashed(self.comparison.key):
            some = rows if places is None else rows.filter(pa.array(np.isin(rows.place, places)))
            found.append(hasher.by_key(some, chunks))
        return pa.concat_tables(found)

    def digests(self, chunks: Sequence[int] | None) -> pa.Table:
        """Return the hashes of each row of some chunks, None for all, in the schema `PLACES`."""
        hasher = self._hasher
        return pa.concat_tables([PLACES.empty_table(), *(hasher.digests(rows, chunks) for rows in self._hashed(()))])

    def values(self, hashes: pa.Array) -> pa.Table:
        """Return the values of the rows whose keys have these hashes, in `Comparison.values_schema`."""
        hasher, columns = self._hasher, self.comparison.columns
        found = [hasher.values(rows, hashes) for rows in self._hashed(columns)]
        return pa.concat_tables([self.comparison.values_schema.empty_table(), *found])

    @property
    def _hasher(self) -> RowHasher:
        return RowHasher(self.comparison)

    def _hashed(self, shown: Sequence[Column]) -> Iterator[HashedRows]:
        columns = self.comparison.columns
        fields = {c.attnum: f for c in columns if (f := self.layout.column(c.attnum)) is not None}
        bounds = KeyBounds.of(self.comparison.key, self.comparison.between)
        for number, file in self.files:
            with open_parquet(self.storage, file.path) as opened, table_file(self.storage, file.path):
                inside = names_by_id(opened).keys()
                groups = None if bounds.is_whole else self._groups(opened, bounds)
            wanted = [*fields.values(), *([] if self.mark is None else [self.mark])]
            for read, positions in file.read(self.storage, wanted, groups=groups):
                rows, places = read, (number << _FILE_BITS) | positions
                if not bounds.is_whole:
                    chosen = bounds.mask(self._key(read, list(fields), inside), read.num_rows)
                    rows, places = read.filter(chosen), places[chosen.to_numpy(zero_copy_only=False)]
                if self.mark is not None:
                    marked = rows.column(len(fields)).is_valid().to_numpy(zero_copy_only=False)
                    chosen = marked if self.comparison.marked else ~marked
                    rows, places = rows.filter(pa.array(chosen)), places[chosen]
                values = {a: self._value(rows, i, f, inside) for i, (a, f) in enumerate(fields.items())}
                frames = [self._framed(c, values.get(c.attnum), rows.num_rows) for c in columns]
                texts = [_shown(c, values.get(c.attnum), rows.num_rows) for c in shown]
                yield self._hasher.hashed(frames, texts, pa.array(places))

    def _key(self, rows: pa.RecordBatch, attnums: Sequence[int], inside: object) -> list[pa.Array]:
        """Return the columns of the key in the source's Arrow types. ``attnums`` are those of the first columns."""
        found = []
        for column in self.comparison.key:
            field = self.layout.column(column.attnum)
            if field is None:
                found.append(pa.nulls(rows.num_rows, column.type.arrow))
                continue
            found.append(as_source(self._value(rows, attnums.index(column.attnum), field, inside), column.type.arrow))
        return found

    def _groups(self, file: pq.ParquetFile, bounds: KeyBounds) -> list[int]:
        """Return the row groups that may have rows of a range, by their statistics."""
        held = self.layout.column(bounds.key[0].attnum)
        number = None if held is None else field_id(held)
        name = None if number is None else names_by_id(file).get(number)
        return [g for g in range(file.num_row_groups) if name is None or bounds.may_be_in(file, g, name)]

    def _value(self, rows: pa.RecordBatch, index: int, field: pa.Field, inside: object) -> pa.Array:
        """Return a column of the rows. In older files it has the value that the table had for it at its addition."""
        number = field_id(field)
        missing = None if number is None else self.layout.missing.get(number)
        if missing is not None and number not in inside:  # type: ignore[operator]  # the keys of a mapping
            return repeated(missing, rows.num_rows)
        return rows.column(index)

    def _framed(self, column: Column, values: pa.Array | None, rows: int) -> pa.Array:
        if values is None:
            return pa.repeat(NULL_FRAME, rows)
        try:
            return framed(as_source(values, column.type.arrow), column.type)
        except NoConversionError:
            raise NeedsOperator(
                "verify_unsupported",
                f"column {column.name} has another type at the destination than the next copy gives it",
                hint="resolve the error of the table, so that it is copied, and compare again",
            ) from None


def split_places(places: pa.Array) -> tuple[Positions, Positions]:
    """Return the number of the file, and the position, of each place."""
    numbers = places.to_numpy(zero_copy_only=False)
    return numbers >> _FILE_BITS, numbers & ((1 << _FILE_BITS) - 1)


def _shown(column: Column, values: pa.Array | None, rows: int) -> pa.Array:
    if values is None:
        return pa.nulls(rows, pa.string())
    return shown_text(as_source(values, column.type.arrow), column.type)
