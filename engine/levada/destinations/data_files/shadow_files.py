"""The common part of shadow copies in lakes: files that no commit refers to, the index of their keys, and batches."""

from __future__ import annotations

import logging
import shutil
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from levada.destinations.data_files.changelog import write_changelog
from levada.destinations.data_files.layout import FileLayout
from levada.destinations.data_files.storage import Storage, WrittenFile
from levada.destinations.interface import TableMode
from levada.destinations.key_index.index import KeyIndex
from levada.destinations.key_index.table_index import TableIndex
from levada.destinations.keys import key_kind
from levada.schema import ReplicatedTableSchema
from levada.segments.batch import TableEvents
from levada.segments.checksums import DamageError
from levada.values import Lsn, Watermark

_log = logging.getLogger(__name__)

NO_SNAPSHOT: Final = 0
"""The snapshot of the index of a shadow copy, whose files are not committed. No snapshot of a lake has this ID."""


@dataclass(slots=True, kw_only=True)
class ShadowFiles(ABC):
    """The files of a shadow copy, and the version and LSN of their content. Not thread-safe."""

    schema: ReplicatedTableSchema
    """The version that was written last."""
    mode: TableMode
    lsn: Lsn
    """The LSN below which all changes are in the files."""
    index_folder: Path
    files: list[WrittenFile] = field(default_factory=list)
    index: KeyIndex | None = None
    """The key index of the files, or None for a changelog."""
    range_names: tuple[str, ...] = ()
    """The names of the descriptions of ranges that are in the folder."""

    @abstractmethod
    def layout_of_files(self) -> FileLayout:
        """Return the layout of new files."""

    @abstractmethod
    def _has_columns_of(self, schema: ReplicatedTableSchema) -> bool:
        """Return True if the files have the columns of this version of the source table."""

    @abstractmethod
    def _upsert(self, index: KeyIndex, events: TableEvents, after: Lsn, storage: Storage) -> None:
        """Write the files of a batch whose rows have keys, and commit the index."""

    def apply(self, events: TableEvents, mark: Watermark, storage: Storage) -> bool:
        """Write the files of a batch. Return False, without writing, if the batch changes the columns.

        A batch that was applied before is ignored.
        """
        if mark.lsn <= self.lsn:
            return True
        if not self._has_columns_of(events.schema):
            return False
        after = max(events.after, self.lsn)
        if self.index is None:
            self.files += write_changelog(storage, self.layout_of_files(), events.schema, events, after)
        else:
            self._upsert(self.index, events, after, storage)
        self.schema, self.lsn = events.schema, mark.lsn
        return True

    def new_index(self) -> KeyIndex:
        """Return an empty index for the copied rows."""
        shutil.rmtree(self.index_folder, ignore_errors=True)
        self.index = KeyIndex.open(self.index_folder, key_kind(self.schema), key=self.schema.key)
        return self.index

    def remove_index(self) -> None:
        """Remove the index and its folder."""
        self.index = None
        shutil.rmtree(self.index_folder, ignore_errors=True)

    def hand_over_index(self, snapshot: int, table: TableIndex) -> None:
        """Make the index that of the table, whose ``snapshot`` has the files. After an error it is rebuilt."""
        table.forget()
        try:
            if self.index is not None:
                self.index.commit(snapshot)
                self.index_folder.rename(table.folder)
        except (OSError, DamageError) as error:
            _log.warning("the key index of the shadow copy cannot be moved, and is rebuilt: %s", error)
        self.remove_index()
