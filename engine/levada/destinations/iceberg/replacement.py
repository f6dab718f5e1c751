"""A new copy of a table, made beside it: files that no commit names until one commit puts them in the table's place.

The table goes on being read, written, compacted and expired meanwhile, and sees nothing of it.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from levada.destinations.iceberg.changelog import write_changelog
from levada.destinations.iceberg.claim import Claim
from levada.destinations.iceberg.files import Storage, WrittenFile
from levada.destinations.iceberg.index import KeyIndex
from levada.destinations.iceberg.indexing import KeyReader, add_files
from levada.destinations.iceberg.java import FILE_VANISHED, CommitConflict
from levada.destinations.iceberg.layout import Layout, replacement_layout
from levada.destinations.iceberg.live import whole
from levada.destinations.iceberg.metadata import Property
from levada.destinations.iceberg.table import IcebergTable
from levada.destinations.iceberg.tables import key_property
from levada.destinations.iceberg.upsert import Upsert
from levada.destinations.interface import TableMode
from levada.destinations.keys import key_kind
from levada.errors import DestinationChanged, Transient
from levada.schema import ReplicatedTableSchema
from levada.segments.batch import TableEvents
from levada.values import Lsn, Watermark

_log = logging.getLogger(__name__)

_ATTEMPTS: Final = 3
_NO_SNAPSHOT: Final = 0
"""What the index of files that are not committed stands for: no snapshot has this id."""


@contextmanager
def vanishing() -> Iterator[None]:
    """Raise Transient ``file_vanished`` for a file that is missing before a commit names it."""
    try:
        yield
    except DestinationChanged as error:
        raise Transient("file_vanished", f"a file was removed before its commit: {error.message}") from error


@dataclass(slots=True)
class Replacement:
    """The files of a new copy, and what they hold. Not for two threads at once."""

    claim: Claim
    schema: ReplicatedTableSchema
    """The version that was written last."""
    mode: TableMode
    lsn: Lsn
    """Everything below is in the files."""
    before: Layout
    """The table's columns when the copy began."""
    layout: Layout
    index_folder: Path
    files: list[WrittenFile] = field(default_factory=list)
    deletes: list[WrittenFile] = field(default_factory=list)
    index: KeyIndex | None = None
    """Where the rows are; None for a changelog."""

    @classmethod
    def begin(
        cls, table: IcebergTable, schema: ReplicatedTableSchema, mode: TableMode, mark: Watermark, index_folder: Path
    ) -> Replacement:
        """Claim the table, and decide on the columns of the copy."""
        metadata = table.metadata
        layout = replacement_layout(metadata.layout, metadata.last_field_id, schema, mode)
        claim = Claim.take(table, mark)
        return cls(claim, schema, mode, mark.lsn, metadata.layout, layout, index_folder)

    def copied(self, files: list[WrittenFile], storage: Storage) -> None:
        """Take the copy's files, and index their rows."""
        self.files = files
        if self.mode is TableMode.UPSERT:
            shutil.rmtree(self.index_folder, ignore_errors=True)
            self.index = KeyIndex.open(self.index_folder, key_kind(self.schema))
            reader = KeyReader.of(self.schema, self.layout, self.index.seed)
            add_files(self.index, reader, storage.io(), (whole(f.path) for f in files))
            self.index.commit(_NO_SNAPSHOT)

    def apply(self, events: TableEvents, mark: Watermark, storage: Storage) -> bool:
        """Write the files of a batch; return False, with nothing written, if it changes the columns.

        A batch that is there already changes nothing.
        """
        if mark.lsn <= self.lsn:
            return True
        known = max((f.id for f in self.layout.fields), default=0)
        if replacement_layout(self.layout, known, events.schema, self.mode) != self.layout:
            return False
        after = max(events.after, self.lsn)
        if self.index is None:
            self.files += write_changelog(storage, self.layout, events.schema, events, after)
        else:
            self._upsert(self.index, events, after, storage)
        self.schema, self.lsn = events.schema, mark.lsn
        return True

    def _upsert(self, index: KeyIndex, events: TableEvents, after: Lsn, storage: Storage) -> None:
        batch = Upsert(storage, self.layout, events.schema, index)
        batch.run(events, after)
        try:
            index.commit(_NO_SNAPSHOT)
        except BaseException:
            batch.discard()
            raise
        if batch.truncated:
            storage.remove([*self.files, *self.deletes])
            self.files, self.deletes = [], []
        self.files += batch.files
        self.deletes += batch.deletes

    def commit(self, table: IcebergTable, mark: Watermark) -> int | None:
        """Put the files in the place of all that the table has; return the snapshot's id.

        None, with nothing changed, if they no longer fit: the table's columns are others than those it had, it is
        claimed by another, or a file is gone. Raise StaleEpoch if that is a newer driver.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            table.check_epoch(mark)
            if not self._fits(table, mark):
                return None
            try:
                return table.write(
                    self.files,
                    self.deletes,
                    mark=mark,
                    replacing=True,
                    layout=self.layout,
                    properties={
                        Property.MODE.value: self.mode.value,
                        Property.KEY.value: key_property(self.schema),
                        Property.COLUMNS.value: self.layout.columns_json(),
                        Property.FILL.value: None,
                        Property.CLAIM.value: None,
                    },
                )
            except CommitConflict as conflict:
                if conflict.code == FILE_VANISHED:
                    return None
                if attempt == _ATTEMPTS:
                    raise
                table.refresh()
        raise AssertionError

    def _fits(self, table: IcebergTable, mark: Watermark) -> bool:
        # The stream may have brought the table to the columns that the copy had from the start.
        return self.claim.holds(table, mark) and table.metadata.layout in (self.before, self.layout)

    def remove_index(self) -> None:
        """Remove the index."""
        self.index = None
        shutil.rmtree(self.index_folder, ignore_errors=True)

    def hand_over_index(self, snapshot: int, folder: Path) -> None:
        """Make the index that of the table, in the place of the one in ``folder``; it is lost if it cannot be kept."""
        shutil.rmtree(folder, ignore_errors=True)
        try:
            if self.index is not None:
                self.index.commit(snapshot)
                self.index_folder.rename(folder)
        except OSError as error:
            _log.warning("the key index of the new copy cannot be kept: %s", error)
        self.remove_index()
