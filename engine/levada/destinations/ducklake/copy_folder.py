"""The folder of a copy's files below the table's, so that its finished ranges are found again, or removed.

The state of the table names the folder until the commit of the copy. So no snapshot refers to a file of a folder that
is named there.
"""

from __future__ import annotations

import logging
import re
import uuid
from dataclasses import replace
from typing import Final

from levada.destinations.data_files.storage import FileSystemStorage, storage_errors
from levada.destinations.ducklake.state import TableRow
from levada.destinations.ducklake.tables import LakeTable
from levada.destinations.ducklake.writes import Catalog
from levada.errors import LevadaError
from levada.postgres.silence import WatchedConnection
from levada.values import Watermark

_log = logging.getLogger(__name__)

_NAME: Final = re.compile(r"copy-[0-9a-f-]{36}/")


def take_folder(
    catalog: Catalog,
    connection: WatchedConnection,
    row: TableRow,
    table: LakeTable,
    mark: Watermark,
    kept_place: str | None,
) -> tuple[TableRow, FileSystemStorage]:
    """Store the folder of a copy that begins in the state of the table, which is locked. Return both.

    It is that of an earlier copy if that has ``kept_place``. Otherwise the files of that copy are removed.
    """
    if row.copy_folder is not None:
        former = catalog.lake.storage(table.folder + row.copy_folder)
        if former.folder == kept_place and _NAME.fullmatch(row.copy_folder):
            return row, former
        _log.info("%s: removing the files of an interrupted copy", table.name)
        remove_folder(former)
    begun = replace(row, epoch=mark.epoch, copy_folder=f"copy-{uuid.uuid4()}/")
    catalog.state.save(connection, row, begun)
    return begun, catalog.lake.storage(f"{table.folder}{begun.copy_folder}")


def remove_folder(storage: FileSystemStorage) -> None:
    """Remove the folder of a copy that is not committed. Files that cannot be removed are left as orphans."""
    if not _NAME.fullmatch(f"{storage.folder.rstrip('/').rpartition('/')[2]}/"):
        return
    try:
        with storage_errors(f"remove {storage.folder}"):
            storage.file_system.delete_dir(storage.folder.rstrip("/"))
    except LevadaError as error:
        _log.info("the files of an interrupted copy in %s stay: %s", storage.folder, error.message)
