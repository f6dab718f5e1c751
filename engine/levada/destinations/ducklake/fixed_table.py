"""One version of a table in DuckLake, whose checksums are computed from its data files."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import pyarrow as pa

from levada import codes
from levada.copy.tasks import TaskRunner, run_tasks
from levada.destinations.data_files.file_hashes import PLACES, FileHashes, split_places
from levada.destinations.data_files.live_files import LiveFile
from levada.destinations.data_files.row_lookup import RowLookup
from levada.destinations.data_files.storage import Storage
from levada.destinations.ducklake.columns import LakeColumns
from levada.destinations.ducklake.index_sync import live_files
from levada.destinations.ducklake.intact import read_as_it_is
from levada.destinations.ducklake.tables import LakeTable, LiveDataFile, read_files
from levada.destinations.ducklake.writes import Catalog
from levada.destinations.row_hashes import summed_chunks
from levada.destinations.verification import PLACE, Comparison, FixedTable
from levada.errors import DestinationChanged, Transient
from levada.schema import ReplicatedTableSchema, TableTarget
from levada.schema.kept_rows import DELETED_AT_ATTNUM
from levada.values import Lsn, QualifiedTable

_ROWS_OF_A_TASK: Final = 1_000_000
_AT_ONCE: Final = 4
_ROWS_AT_ONCE: Final = 65_536


@dataclass(frozen=True, slots=True)
class SizedFile:
    """A data file, and the number of its rows that are not deleted. ``held`` is None for a file without a snapshot."""

    file: LiveFile
    rows: int
    held: LiveDataFile | None = None


class DuckLakeVersion(FixedTable):
    """The rows of ``files``. Tasks of ``runner`` read them, and without one this process does.

    ``is_current`` returns True if the table still has all these files. A clean-up of another program removes those that
    a compaction has replaced.
    """

    def __init__(
        self,
        schema: ReplicatedTableSchema,
        held: LakeColumns,
        storage: Storage,
        files: Sequence[SizedFile],
        applied: Lsn,
        runner: TaskRunner | None,
        is_current: Callable[[], bool],
        *,
        keeps_columns: bool,
    ) -> None:
        by_id = held.by_id
        self.columns = {a: by_id[number].name for a, number in held.attnums.items() if number in by_id}
        self.estimated_rows = sum(f.rows for f in files)
        self.applied = applied
        self.keeps_columns = keeps_columns
        self._schema = schema
        self._layout = held.files(schema)
        self._storage = storage
        self._files = files
        self._runner = runner
        self._is_current = is_current

    def chunks(self, comparison: Comparison) -> pa.Table:
        """Return the checksums of all rows by chunk, in the schema `CHUNKS`."""
        return summed_chunks(self._each(comparison, FileHashes.chunks))

    def rows(self, comparison: Comparison, chunks: Sequence[int]) -> pa.Table:
        """Return the checksums of the rows of some chunks by key, in the schema `Comparison.rows_schema`."""
        return self._each(comparison, partial(FileHashes.by_key, chunks=chunks))

    def digests(self, comparison: Comparison, chunks: Sequence[int] | None) -> pa.Table:
        """Return the hashes of each row of some chunks, None for all, in the schema of `file_hashes.PLACES`."""
        return self._each(comparison, partial(FileHashes.digests, chunks=chunks)).cast(PLACES)

    def rows_at(self, comparison: Comparison, places: pa.Table) -> pa.Table:
        """Return the checksums of some rows of `digests` by key, in the schema `Comparison.rows_schema`."""
        if not places.num_rows:
            return comparison.rows_schema.empty_table()
        wanted = places[PLACE].to_numpy()
        everything = replace(comparison, marked=None)
        return self._each(everything, partial(FileHashes.by_key, chunks=None, places=wanted))

    def values(self, comparison: Comparison, hashes: pa.Array) -> pa.Table:
        """Return the values of the rows whose keys have these hashes, as text for people, in `values_schema`."""
        return self._each(comparison, partial(FileHashes.values, hashes=hashes))

    def whole_rows(self, schema: ReplicatedTableSchema, places: pa.Table) -> Iterator[pa.RecordBatch]:
        """Yield these rows of `digests` in the columns of ``schema``."""
        lookup, names = RowLookup(self._storage, self._layout, schema), [c.name for c in schema.columns]
        paths = [f.file.path for f in self._files]
        for first in range(0, places.num_rows, _ROWS_AT_ONCE):
            files, positions = split_places(places[PLACE].slice(first, _ROWS_AT_ONCE).combine_chunks())
            with while_current(self._schema.name, self._is_current):
                rows = lookup.read(names, paths, files, positions)
            yield from rows.combine_chunks().to_batches()

    @property
    def held_files(self) -> Iterator[LiveDataFile]:
        """The data files of the version in the catalog."""
        return (f.held for f in self._files if f.held is not None)

    def marked_rows(self) -> int:
        """Return the number of rows with the mark of deleted ones."""
        key = self._schema.key_columns[:1] or self._schema.columns[:1]
        counted = self._each(Comparison(key, key, 1, marked=True), FileHashes.chunks)
        return int(sum(counted["rows"].to_pylist()))

    def _each(self, comparison: Comparison, work: Callable[[FileHashes], pa.Table]) -> pa.Table:
        """Return the results for all files, one below the other. There is at least one part."""
        mark = None if comparison.marked is None else self._layout.column(DELETED_AT_ATTNUM)
        parts = self._parts() or [[]]
        tasks = [partial(work, FileHashes(self._storage, self._layout, comparison, files, mark)) for files in parts]
        with while_current(self._schema.name, self._is_current):
            if self._runner is None or len(tasks) == 1:
                return pa.concat_tables([task() for task in tasks])
            name = f"checksums of {self._schema.name}"
            never = threading.Event()
            return pa.concat_tables(run_tasks(self._runner, tasks, name, parallel=_AT_ONCE, cancelled=never))

    def _parts(self) -> list[list[tuple[int, LiveFile]]]:
        """Return the files in groups of about the same number of rows."""
        parts: list[list[tuple[int, LiveFile]]] = []
        rows = _ROWS_OF_A_TASK
        for number, sized in enumerate(self._files):
            if rows >= _ROWS_OF_A_TASK:
                parts.append([])
                rows = 0
            parts[-1].append((number, sized.file))
            rows += sized.rows
        return parts


@contextmanager
def while_current(name: QualifiedTable, is_current: Callable[[], bool]) -> Iterator[None]:
    """Raise Transient ``table_changed`` for a missing file if the table has not all files that are read any more."""
    try:
        yield
    except DestinationChanged as error:
        if error.code != codes.TABLE_DAMAGED or is_current():
            raise
        raise Transient("table_changed", f"files of {name} were removed while they were read") from error


def has_files(catalog: Catalog, table: LakeTable, held: Sequence[LiveDataFile]) -> bool:
    """Return True if all these files are still the table's."""
    with catalog.database.transaction(f"reading {table.name}") as connection:
        now = {f.path for f in read_files(connection, table)}
    return now.issuperset(f.path for f in held)


def current_version(
    catalog: Catalog, target: TableTarget, runner: TaskRunner | None, *, keeps_columns: bool
) -> DuckLakeVersion | None:
    """Return the rows of the current data files, also if another writer has changed the table. None without a copy.

    Raise DestinationChanged ``foreign_write`` if another writer has put rows into the catalog itself.
    """
    reading = f"reading {target.schema.name}"
    with catalog.database.transaction(reading) as connection:
        if (found := catalog.state.find_copied(connection, target.id)) is None:
            return None
        row, lsn = found
        as_it_is = read_as_it_is(connection, catalog.lake.uri, row)
        table, columns = as_it_is.table, as_it_is.columns
        held = read_files(connection, table)
    storage = catalog.lake.storage(table.folder)
    files = live_files(storage, catalog.lake, held)
    sized = [SizedFile(file, of.rows - of.deleted, of) for file, of in zip(files, held, strict=True)]

    is_current = partial(has_files, catalog, table, held)
    return DuckLakeVersion(target.schema, columns, storage, sized, lsn, runner, is_current, keeps_columns=keeps_columns)
