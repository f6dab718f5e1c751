"""The excluded columns of each table, by which capture leaves them out of the stream."""

from __future__ import annotations

from collections.abc import Callable

from levada.runtime.config_ref import ConfigRef
from levada.runtime.tables.record import TableRecord
from levada.runtime.tables.requests import CopySettings
from levada.schema import ReplicatedTableSchema
from levada.stores.phases import Init
from levada.values import TableId


class ExcludedColumns:
    """Keeps each copied table's excluded columns until the next copy.

    ``reopen`` requests a new replication session, and returns its number. ``exclude`` sets the columns of a table that
    the stream leaves out from the next session on. Without that, each schema version keeps those of the one before.
    """

    def __init__(
        self,
        config_ref: ConfigRef,
        reopen: Callable[[], int],
        exclude: Callable[[TableId, frozenset[str]], None],
    ) -> None:
        self._config_ref = config_ref
        self._reopen = reopen
        self._exclude = exclude
        self._columns: dict[TableId, frozenset[str]] = {}

    def of(self, record: TableRecord) -> frozenset[str]:
        """Return the columns that the stream leaves out, from the session on that the table's next copy waits for."""
        return self._columns[record.id]

    def add(self, record: TableRecord, last: CopySettings | None, newest: ReplicatedTableSchema | None) -> None:
        """Keep the columns of the table's last copy, or apply the configured ones if it will be copied.

        ``newest`` is the newest schema version of the table, None if it has none.
        """
        configured = self._config_ref.current.table(record.name).excluded_columns
        kept = configured if last is None or isinstance(record.phase, Init) else last.excluded_columns
        self._columns[record.id] = kept
        # Also if the newest version has them, because the stream may begin below that version. Without a version the
        # stream reads them from the configuration, which may change before the table's first row.
        self._exclude(record.id, kept)
        if newest is not None and newest.excluded_columns != kept:
            self.wait_for_session(record)

    def forget(self, record: TableRecord) -> None:
        """Forget the columns of a table that is no longer replicated."""
        self._columns.pop(record.id, None)

    def apply_configured(self, record: TableRecord) -> None:
        """Apply the configured columns to the stream. The next copy waits for a session that excludes them."""
        columns = self._config_ref.current.table(record.name).excluded_columns
        if self._columns[record.id] != columns:
            self._columns[record.id] = columns
            self._exclude(record.id, columns)
            self.wait_for_session(record)

    def wait_for_session(self, record: TableRecord) -> None:
        """Request a new session of the stream. The table's next copy waits for it."""
        record.copy.wait_for_session(self._reopen())
