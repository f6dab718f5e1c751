"""The data files of a table's current snapshot, with the positions of their deleted rows."""

from __future__ import annotations

from collections.abc import Mapping

from levada.destinations.data_files.deletion_vectors import read_vectors, to_positions
from levada.destinations.data_files.live_files import LiveFile, Positions, without_deletes
from levada.destinations.data_files.position_deletes import read_position_deletes
from levada.destinations.iceberg.delete_files import PlannedDeletes
from levada.destinations.iceberg.storage import POSITION_DELETES
from levada.destinations.iceberg.table import IcebergTable


def live_files(table: IcebergTable) -> list[LiveFile]:
    """Return the data files of the current snapshot.

    If another writer added files that are not Parquet, or equality deletes, the table is rewritten first.
    """
    planned = table.plan()
    if planned is None:
        table.rewrite_all()
        planned = table.plan()
        assert planned is not None, f"{table.name} has files that Iceberg did not rewrite"
    deleted = positions_in_files(table, planned)
    vectors = [p.vector for p in planned.values() if p.vector is not None]
    deleted |= {v.data_file: to_positions(bitmap) for v, bitmap in read_vectors(table.storage(), vectors)}
    return [LiveFile(path, deleted[path]) if path in deleted else without_deletes(path) for path in planned]


def positions_in_files(table: IcebergTable, planned: Mapping[str, PlannedDeletes]) -> dict[str, Positions]:
    """Return the positions that position-delete files remove, by data file.

    A data file with a deletion vector is left out. The vector has its earlier position deletes too.
    """
    paths = {path for deletes in planned.values() for path in deletes.files}
    if not paths:
        return {}
    found = read_position_deletes(table.storage(), POSITION_DELETES, sorted(paths))
    return {path: found[path] for path, deletes in planned.items() if deletes.files and path in found}
