"""Reads the keys of a table's rows in a region from its data files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from levada.destinations.data_files.layout import FileLayout, field_id, names_by_id
from levada.destinations.data_files.live_files import LiveFile, open_parquet
from levada.destinations.data_files.source_types import as_source
from levada.destinations.data_files.storage import FileSource, table_file
from levada.destinations.regions import Bounds, column_missing, deciding_columns, is_in, may_be_in
from levada.schema import Column, ReplicatedTableSchema
from levada.schema.partitions import Region


@dataclass(frozen=True, slots=True)
class RegionReader:
    """Reads the key columns of rows in a region, with the names and Arrow types of the source."""

    schema: ReplicatedTableSchema
    region: Region
    columns: tuple[Column, ...]
    """The key columns in key order, and the other columns that decide."""
    fields: tuple[pa.Field, ...]

    @classmethod
    def of(cls, schema: ReplicatedTableSchema, layout: FileLayout, region: Region) -> RegionReader:
        """Return a reader. Raise NeedsOperator ``partition_changed`` if the table lacks one of the columns."""
        key = schema.key_columns
        columns = (*key, *(c for c in deciding_columns(region, schema) if c not in key))
        fields = []
        for column in columns:
            held = layout.column(column.attnum)
            if held is None or field_id(held) in layout.missing:
                raise column_missing(schema, column.attnum)
            fields.append(held)
        return cls(schema, region, columns, tuple(fields))

    def may_have_rows(self, storage: FileSource, path: str) -> bool:
        """Return False if the bounds in a file's footer exclude all rows of the region."""
        with open_parquet(storage, path) as file, table_file(storage, path):
            by_id = names_by_id(file)
            names = {c.attnum: by_id.get(field_id(f) or 0) for c, f in zip(self.columns, self.fields, strict=True)}
            return any(
                may_be_in(self.region, self.schema, self._bounds(file, group, names))
                for group in range(file.num_row_groups)
            )

    def _bounds(self, file: pq.ParquetFile, group: int, names: dict[int, str | None]) -> Bounds:
        metadata, found = file.metadata.row_group(group), {}
        statistics = {
            metadata.column(i).path_in_schema: metadata.column(i).statistics for i in range(metadata.num_columns)
        }
        for column in self.columns:
            name = names[column.attnum]
            known = None if name is None else statistics.get(name)
            if known is None or not known.has_min_max or known.null_count:
                continue
            ends = pa.array([known.min, known.max], file.schema_arrow.field(name).type)
            found[column.attnum] = as_source(ends, column.type.arrow)
        return found

    def read(self, storage: FileSource, files: Iterable[LiveFile]) -> Iterator[pa.RecordBatch]:
        """Yield the keys of the rows in the region."""
        names = [c.name for c in self.schema.key_columns]
        for file in files:
            for rows, _ in file.read(storage, self.fields):
                arrays = [as_source(a, c.type.arrow) for a, c in zip(rows.columns, self.columns, strict=True)]
                values = {c.attnum: a for c, a in zip(self.columns, arrays, strict=True)}
                mask = is_in(self.region, self.schema, values, rows.num_rows)
                keys = pa.RecordBatch.from_arrays(arrays[: len(names)], names=names).filter(mask)
                if keys.num_rows:
                    yield keys
