"""Writes a data file again without some of its rows. All of its columns stay, also those of another writer."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa

from levada.destinations.data_files.data_writer import DataWriter
from levada.destinations.data_files.live_files import BATCH_ROWS, Positions, open_parquet
from levada.destinations.data_files.storage import FileSystemStorage, WrittenFile, table_file

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
