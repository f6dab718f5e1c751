"""Rewrites data files with the constants of columns that were added at the source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from levada.destinations.data_files.arrangement import ArrangedWriter
from levada.destinations.data_files.layout import FileLayout, cast_columns
from levada.destinations.data_files.live_files import LiveFile
from levada.destinations.data_files.storage import Storage, WrittenFile
from levada.schema.types import repeated


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
