"""The data files of a table's current snapshot, with the rows that position deletes have removed."""

from __future__ import annotations

from levada.destinations.data_files.live_files import LiveFile, without_deletes
from levada.destinations.data_files.position_deletes import read_position_deletes
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
    deletes = {path for paths in planned.values() for path in paths}
    deleted = read_position_deletes(table.storage(), POSITION_DELETES, sorted(deletes)) if deletes else {}
    return [LiveFile(path, deleted[path]) if path in deleted else without_deletes(path) for path in planned]
