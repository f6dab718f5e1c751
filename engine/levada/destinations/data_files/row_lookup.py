"""Reads rows of data files by their positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from levada.destinations.data_files.layout import FileLayout, field_id, names_by_id
from levada.destinations.data_files.live_files import Positions, open_parquet
from levada.destinations.data_files.source_types import as_source
from levada.destinations.data_files.storage import Storage, table_file
from levada.schema import ReplicatedTableSchema
from levada.schema.types import repeated


@dataclass(frozen=True, slots=True)
class RowLookup:
    """Reads source columns of rows in data files. Only the row groups with these rows are read."""

    storage: Storage
    layout: FileLayout
    schema: ReplicatedTableSchema

    def read(
        self, names: Sequence[str], paths: Sequence[str], files: npt.NDArray[np.integer[Any]], positions: Positions
    ) -> pa.Table:
        """Return the named columns. Row ``i`` of the result is the row at ``positions[i]`` of ``paths[files[i]]``."""
        wanted = pa.schema([self.schema.arrow.field(name) for name in names])
        order = np.lexsort((positions, files))
        parts = []
        for number in np.unique(files):
            mine = order[files[order] == number]
            with open_parquet(self.storage, paths[number]) as file, table_file(self.storage, paths[number]):
                parts.append(self._rows(file, wanted, positions[mine]))
        rows = pa.concat_tables(parts)
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return rows.take(back)

    def _rows(self, file: pq.ParquetFile, wanted: pa.Schema, positions: Positions) -> pa.Table:
        """Return the rows of one file. ``positions`` are ascending."""
        by_id = names_by_id(file)
        columns = [c for c in self.schema.columns if c.name in wanted.names]
        fields = {c.name: self.layout.column(c.attnum) for c in columns}
        ids = {name: field_id(f) for name, f in fields.items() if f is not None}
        inside = {name: by_id[number] for name, number in ids.items() if number is not None and number in by_id}
        metadata = file.metadata
        sizes = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
        ends = np.cumsum(sizes)
        groups = np.searchsorted(ends, positions, side="right")
        parts = []
        for group in np.unique(groups):
            rows = file.read_row_group(int(group), columns=sorted(set(inside.values())))
            at = positions[groups == group] - (ends[group] - sizes[group])
            taken = rows.take(at) if inside else None
            arrays = [
                pa.chunked_array([self._missing(ids.get(f.name), f.type, len(at))])
                if taken is None or f.name not in inside
                else as_source(taken.column(inside[f.name]), f.type)
                for f in wanted
            ]
            parts.append(pa.Table.from_arrays(arrays, schema=wanted))
        return pa.concat_tables(parts)

    def _missing(self, number: int | None, kind: pa.DataType, rows: int) -> pa.Array:
        value = self.layout.missing.get(-1 if number is None else number)
        return pa.nulls(rows, kind) if value is None else repeated(as_source(value, kind), rows)
