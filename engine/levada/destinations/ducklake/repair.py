"""The repair of a table: the rows that differ from the source are written again, in one commit.

If another writer has changed the table before, its state does not record the commit of a repair. So until `accept`, it
looks like that of another writer, and a table whose repair did not end is parked. A table that no other writer has
changed goes on from its watermark, whether or not its repair ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa

from levada.destinations.data_files.arrangement import ArrangedWriter
from levada.destinations.data_files.file_hashes import split_places
from levada.destinations.data_files.layout import project
from levada.destinations.data_files.storage import remove_files
from levada.destinations.ducklake.deletes import DeletedRows
from levada.destinations.ducklake.fixed_table import DuckLakeVersion
from levada.destinations.ducklake.intact import IntactTable, read_as_it_is, read_intact
from levada.destinations.ducklake.state import TableRow
from levada.destinations.ducklake.statistics import describe_files
from levada.destinations.ducklake.tables import LiveDataFile, newest_snapshot, read_files
from levada.destinations.ducklake.writes import Catalog, Changes, commit, conflict, is_uncommitted
from levada.destinations.fenced import missing, require_epoch
from levada.destinations.verification import PLACE, Repair, is_kept
from levada.errors import LevadaError
from levada.postgres.silence import WatchedConnection
from levada.schema import ReplicatedTableSchema
from levada.values import Watermark

_READING: Final = "reading a table to repair"


def repair_rows(
    catalog: Catalog,
    schema: ReplicatedTableSchema,
    fixed: DuckLakeVersion,
    repair: Repair,
    rows: Iterable[pa.RecordBatch],
    mark: Watermark,
) -> None:
    """Delete the rows ``repair.gone`` of `DuckLakeVersion.digests`, and write ``rows``.

    Raise Transient ``commit_conflict`` if the table changed since it was compared.
    """
    with catalog.database.transaction(_READING) as connection:
        row, intact, held = _read(catalog, connection, schema, fixed, mark)
        kept = is_kept(partial(read_intact, connection, catalog.lake.uri, row), repair)
    storage = catalog.lake.storage(intact.table.folder)
    layout = intact.columns.files(schema)
    deletes = DeletedRows(storage, catalog.lake)
    with ArrangedWriter(storage, layout) as writer:
        for batch in rows:
            writer.write(project(batch, layout, schema))
    try:
        if repair.gone.num_rows:
            files, positions = split_places(repair.gone[PLACE].combine_chunks())
            numbers, at = np.unique(files, return_inverse=True)
            deletes.add([catalog.lake.path(held[n].path) for n in numbers], at, positions)
            deletes.write({catalog.lake.path(f.path): f for f in held}, {})
        changes = Changes(intact.columns, describe_files(storage, writer.files, intact.columns.own), deletes)
        commit(catalog, row, intact, changes, replace(row, epoch=mark.epoch), check=False, recorded=kept)
    except LevadaError as error:
        if is_uncommitted(error):
            deletes.discard()
            remove_files(storage, writer.files)
        raise


def accept(catalog: Catalog, schema: ReplicatedTableSchema, fixed: DuckLakeVersion, mark: Watermark) -> None:
    """Record the version ``fixed``, which equals the source at ``mark``, as Levada's last commit.

    Raise Transient ``commit_conflict`` if the table changed since it was compared.
    """
    with catalog.database.transaction("accepting the repair of a table") as connection:
        row, intact, _ = _read(catalog, connection, schema, fixed, mark)
        equal = row.committed(newest_snapshot(connection), intact.content, mark)
        catalog.state.save(connection, row, equal)


def _read(
    catalog: Catalog,
    connection: WatchedConnection,
    schema: ReplicatedTableSchema,
    fixed: DuckLakeVersion,
    mark: Watermark,
) -> tuple[TableRow, IntactTable, list[LiveDataFile]]:
    row = catalog.state.find(connection, schema.id, lock=True)
    if row is None or row.lsn is None:
        raise missing(schema.name, schema.name)
    require_epoch(row.epoch, mark.epoch)
    found = read_as_it_is(connection, catalog.lake.uri, row)
    held = read_files(connection, found.table)
    if held != list(fixed.held_files):
        raise conflict(f"another writer changed {found.table.name}")
    return row, found, held
