"""Writes a data file again without some of its rows, or with the constants of columns that the source has added."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa

from levada.destinations.data_files.arrangement import ArrangedWriter
from levada.destinations.data_files.data_writer import DataWriter
from levada.destinations.data_files.layout import FileLayout, cast_columns
from levada.destinations.data_files.live_files import BATCH_ROWS, LiveFile, Positions, open_parquet
from levada.destinations.data_files.storage import FileSystemStorage, Storage, WrittenFile, table_file
from levada.schema.types import repeated

_ONE_FILE: Final = 1 << 62
"""The bytes from which a file is closed, so that there is one."""


def without_rows(storage: FileSystemStorage, path: str, erased: Positions) -> WrittenFile | None:
    """Write the rows of a file again, but those at the ascending positions ``erased``. Return None if none is left."""
    one = replace(storage, parquet=replace(storage.parquet, target_bytes=_ONE_FILE))
    begin = 0
    with open_parquet(storage, path) as file, table_file(storage, path):
        columns = file.schema_arrow
        with DataWriter(one, columns) as writer:
            for group in range(file.num_row_groups):
                for rows in file.iter_batches(batch_size=BATCH_ROWS, row_groups=[group]):
                    low, high = np.searchsorted(erased, [begin, begin + rows.num_rows])
                    kept = np.delete(np.arange(rows.num_rows), erased[low:high] - begin)
                    writer.write(pa.Table.from_batches([rows.take(pa.array(kept))]).cast(columns))
                    begin += rows.num_rows
    return writer.files[0] if writer.files else None


def moved(positions: Positions, erased: Positions) -> Positions:
    """Return the positions of rows after the erasure of others. Those of erased rows are left out."""
    left = np.setdiff1d(positions, erased)
    return left - np.searchsorted(erased, left)


@dataclass(frozen=True, slots=True)
class FillTask:
    """Rewrites a data file with the constants of added columns.

    ``constants`` are arrays of one value. A scalar is pickled as a Python object, which not every date has.
    """

    storage: Storage
    layout: FileLayout
    constants: Mapping[str, pa.Array]
    table: str

    def __call__(self, file: LiveFile) -> list[WrittenFile]:
        """Write the remaining rows of the file to new ones, and return these."""
        held = [f for f in self.layout.arrow if f.name not in self.constants]
        with ArrangedWriter(self.storage, self.layout) as writer:
            for rows, _ in file.read(self.storage, held):
                arrays = [
                    repeated(self.constants[f.name], rows.num_rows) if f.name in self.constants else rows.column(f.name)
                    for f in self.layout.arrow
                ]
                writer.write(cast_columns(arrays, self.layout.arrow, self.table))
        return writer.files
