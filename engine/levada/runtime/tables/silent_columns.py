"""Changes of columns that the catalog shows and the stream does not, because no row of the table followed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from levada.errors import LevadaError, NeedsOperator
from levada.postgres.storage import StorageSnapshot
from levada.runtime.tables.record import TableRecord
from levada.runtime.tables.rules import needs_resync
from levada.schema import Column, ExcludedColumn
from levada.schema.table import NEWEST_VERSION
from levada.stores.interface import PipelineStore
from levada.stores.phases import DataSync, Init
from levada.values import QualifiedTable, TableId, resync_command

_log = logging.getLogger(__name__)


Columns: TypeAlias = frozenset[tuple[int, str, int, int]]
"""The attnum, name, type and type modifier of each column that is streamed."""


def columns_of(columns: Iterable[Column | ExcludedColumn]) -> Columns:
    """Return the comparable form of columns."""
    return frozenset((c.attnum, c.name, c.type_oid, c.typmod) for c in columns)


@dataclass(frozen=True, slots=True)
class Unmarked:
    """A table for which no mark could be written.

    ``columns`` and ``published`` are all of its columns and those that the publication has, None if they are unknown.
    """

    error: LevadaError
    columns: Columns | None = None
    published: Columns | None = None


class SilentColumns:
    """Finds the tables that need a mark in the stream, see `levada.postgres.column_mark`. For the supervisor's thread.

    ``park`` parks a table until it is resynced.
    """

    def __init__(self, store: PipelineStore, park: Callable[[TableRecord, LevadaError], None]) -> None:
        self._store = store
        self._park = park
        self._wanted: frozenset[TableId] = frozenset()
        self._marked: dict[TableId, Columns] = {}
        """The columns at each table's last mark. If the version still differs, it has all that are published."""

    def take_wanted(self) -> frozenset[TableId]:
        """Return the tables that need a mark, once."""
        wanted, self._wanted = self._wanted, frozenset()
        return wanted

    def forget(self, table: TableId) -> None:
        """Forget the mark of a table."""
        self._marked.pop(table, None)

    def compare(
        self, snapshot: StorageSnapshot, marked: Mapping[TableId, Columns], tables: Iterable[TableRecord]
    ) -> bool:
        """Return True if every table has the columns of a snapshot, whose part of the stream was read before.

        ``marked`` are the marks that were written before the snapshot.
        """
        self._marked |= marked
        behind = frozenset(record.id for record in tables if self._is_behind(record, snapshot))
        self._wanted |= behind
        return not behind

    def _is_behind(self, record: TableRecord, snapshot: StorageSnapshot) -> bool:
        storage = snapshot.tables.get(record.id)
        if storage is None or isinstance(record.phase, Init | DataSync) or needs_resync(record.phase):
            return False
        version = self._store.get_table_schema(record.id, NEWEST_VERSION)
        if version is None or version.snapshot_id > snapshot.start:
            return False
        # Where the snapshot does not show whether generated columns are streamed, their next row does.
        streamed = snapshot.streamed.get(record.id)
        lacks = storage.generated if streamed is None else storage.generated - streamed
        now = frozenset((a, c.name, c.type_oid, c.typmod) for a, c in storage.columns.items() if a not in lacks)
        every: list[Column | ExcludedColumn] = [*version.columns, *version.excluded]
        known = columns_of(c for c in every if streamed is not None or c.attnum not in lacks)
        return now != known and now != self._marked.get(record.id)

    def refused(self, record: TableRecord, unmarked: Unmarked) -> None:
        """Park a table for which no mark can be written. A retried error is left to the next snapshot.

        A table that has all columns of the publication needs no mark.
        """
        error = unmarked.error
        _log.info("table %s: %s", record.name, error.message)
        if error.retried or isinstance(record.phase, Init | DataSync) or needs_resync(record.phase):
            return
        version = self._store.get_table_schema(record.id, NEWEST_VERSION)
        if (
            version is not None
            and unmarked.columns is not None
            and unmarked.published == columns_of([*version.columns, *version.excluded])
        ):
            self._marked[record.id] = unmarked.columns
            return
        self._park(record, _unmarkable(record.name, error))


def _unmarkable(table: QualifiedTable, error: LevadaError) -> NeedsOperator:
    return NeedsOperator(
        "schema_change_ambiguous",
        f"{table}: its columns were changed, the stream does not show that before its next row, and this row's place"
        f" cannot be marked: {error.message}",
        hint=f"copy the table again: {resync_command(table)}. To avoid this error, let the engine's role create"
        " Levada's event trigger, which announces each change",
    )
