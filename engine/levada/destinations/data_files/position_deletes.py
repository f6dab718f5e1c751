"""Files of position deletes: each row has the path of a data file and the position of a deleted row."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from levada.destinations.data_files.live_files import Positions, side_by_side, sorted_positions
from levada.destinations.data_files.statistics import column_statistics
from levada.destinations.data_files.storage import (
    Storage,
    WrittenFile,
    damaged,
    remove_files,
    storage_errors,
    table_file,
)


@dataclass(slots=True)
class PositionDeleteFiles:
    """Writes the deleted rows of a batch to files of position deletes, one for each call of `add` and each partition.

    ``schema`` has the two columns, the path and the position, with the names and field IDs of the table's format.
    ``partitions_of`` returns the partitions of data files, because a delete file belongs to one partition.
    """

    storage: Storage
    schema: pa.Schema
    partitions_of: Callable[[Sequence[str]], Sequence[Hashable]] = lambda paths: [None] * len(paths)
    files: list[WrittenFile] = field(default_factory=list)

    def add(self, paths: Sequence[str], files: npt.NDArray[np.integer[Any]], positions: Positions) -> None:
        """Delete the rows at ``positions[i]`` of ``paths[files[i]]``."""
        partitions = self.partitions_of(paths)
        numbers = {partition: i for i, partition in enumerate(dict.fromkeys(partitions))}
        if len(numbers) == 1:
            written = write_position_deletes(self.storage, self.schema, paths, files, positions)
            self.files.append(replace(written, partition=partitions[0]))
            return
        mine = np.array([numbers[p] for p in partitions])[files]
        order = np.argsort(mine, kind="stable")
        bounds = np.searchsorted(mine[order], np.arange(len(numbers) + 1))
        for partition, begin, end in zip(numbers, bounds[:-1], bounds[1:], strict=True):
            rows = order[begin:end]
            used, local = np.unique(files[rows], return_inverse=True)
            names = [paths[int(n)] for n in used]
            written = write_position_deletes(self.storage, self.schema, names, local, positions[rows])
            self.files.append(replace(written, partition=partition))

    def discard(self) -> None:
        """Remove the files, which are not committed."""
        remove_files(self.storage, self.files)


def write_position_deletes(
    storage: Storage,
    schema: pa.Schema,
    paths: Sequence[str],
    files: npt.NDArray[np.integer[Any]],
    positions: Positions,
) -> WrittenFile:
    """Write one file that deletes the rows at ``positions[i]`` of ``paths[files[i]]``.

    Its rows are sorted by file path and position. ``schema`` has a column for each of the two, in this order.
    """
    in_order = sorted(range(len(paths)), key=paths.__getitem__)
    rank = np.empty(len(paths), np.int64)
    rank[in_order] = np.arange(len(paths))
    ranks, positions = sorted_positions(rank[files], positions)
    # The paths of all rows are never in memory.
    names = pa.DictionaryArray.from_arrays(
        pa.array(ranks.astype(np.int32)), pa.array([paths[i] for i in in_order], pa.string())
    )
    typed = schema.set(0, schema.field(0).with_type(names.type))
    rows = pa.Table.from_arrays([names, pa.array(positions)], schema=typed)
    path = storage.folder + f"{uuid.uuid4()}-deletes.parquet"
    metadata: list[pq.FileMetaData] = []
    try:
        with storage_errors(f"write {path}"), storage.create(path) as sink:
            form = storage.parquet
            pq.write_table(
                rows,
                sink,
                compression=form.compression,
                compression_level=form.level,
                use_dictionary=[schema.names[0]],
                store_schema=False,
                write_page_checksum=True,
                metadata_collector=metadata,
            )
            size = sink.tell()
    except BaseException:
        remove_files(storage, [WrittenFile(path, 0, 0)])
        raise
    return WrittenFile(path, rows.num_rows, size, columns=column_statistics(schema, metadata.pop()))


def read_position_deletes(storage: Storage, schema: pa.Schema, paths: Sequence[str]) -> Mapping[str, Positions]:
    """Return the distinct deleted positions of each data file, in ascending order.

    ``paths`` are files of position deletes, at least one. ``schema`` has their two columns.
    """
    parts = side_by_side(partial(_read, storage, schema.names), paths)
    rows = pa.concat_tables(parts).combine_chunks()
    codes = pc.dictionary_encode(rows.column(0)).combine_chunks()
    order = np.argsort(codes.indices.to_numpy(), kind="stable")
    positions = rows.column(1).to_numpy()[order]
    bounds = np.searchsorted(codes.indices.to_numpy()[order], np.arange(len(codes.dictionary) + 1))
    return {
        path: np.unique(positions[begin:end])
        for path, begin, end in zip(codes.dictionary.to_pylist(), bounds[:-1], bounds[1:], strict=True)
    }


def _read(storage: Storage, names: Sequence[str], path: str) -> pa.Table:
    with table_file(storage, path), storage.open(path) as source:
        rows = pq.read_table(source, columns=list(names), page_checksum_verification=True)
    if set(rows.column_names) != set(names):
        raise damaged(path)
    return rows.select(list(names))
