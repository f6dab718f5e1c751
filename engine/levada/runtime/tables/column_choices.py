"""The columns of each table that capture leaves out of the stream, and the types and masks of the others there."""

from __future__ import annotations

from collections.abc import Callable

from levada.runtime.config_ref import ConfigRef
from levada.runtime.tables.record import TableRecord
from levada.runtime.tables.requests import CopyColumns, CopySettings
from levada.schema import ReplicatedTableSchema
from levada.schema.stored_types import ColumnChoice
from levada.stores.phases import Init
from levada.values import TableId


class ColumnChoices:
    """Keeps each copied table's excluded columns, chosen types and masks until the next copy.

    ``reopen`` requests a new replication session, and returns its number. ``choose`` sets the columns of a table that
    the stream has from the next session on. Without that, each schema version keeps those of the one before.
    """

    def __init__(
        self,
        config_ref: ConfigRef,
        reopen: Callable[[], int],
        choose: Callable[[TableId, ColumnChoice], None],
    ) -> None:
        self._config_ref = config_ref
        self._reopen = reopen
        self._choose = choose
        self._columns: dict[TableId, ColumnChoice] = {}

    def of(self, record: TableRecord) -> ColumnChoice:
        """Return the columns that the stream has, from the session on that the table's next copy waits for."""
        return self._columns[record.id]

    def add(self, record: TableRecord, last: CopySettings | None, newest: ReplicatedTableSchema | None) -> None:
        """Keep the columns of the table's last copy, or apply the configured ones if it will be copied.

        ``newest`` is the newest schema version of the table, None if it has none.
        """
        kept = self._configured(record, last) if last is None or isinstance(record.phase, Init) else last.choice
        self._columns[record.id] = kept
        # Also if the newest version has them, because the stream may begin below that version. Without a version the
        # stream reads them from the configuration, which may change before the table's first row.
        self._choose(record.id, kept)
        if newest is not None and ColumnChoice.of(newest) != kept:
            self.wait_for_session(record)

    def forget(self, record: TableRecord) -> None:
        """Forget the columns of a table that is no longer replicated."""
        self._columns.pop(record.id, None)

    def apply_configured(self, record: TableRecord, last: CopySettings | None) -> None:
        """Apply the configured columns to the stream. The next copy waits for a session that has them.

        ``last`` are the settings of the table's last copy.
        """
        columns = self._configured(record, last)
        if self._columns[record.id] != columns:
            self._columns[record.id] = columns
            self._choose(record.id, columns)
            self.wait_for_session(record)

    def _configured(self, record: TableRecord, last: CopySettings | None) -> ColumnChoice:
        return CopyColumns.of(self._config_ref.current, record.name, last).choice

    def wait_for_session(self, record: TableRecord) -> None:
        """Request a new session of the stream. The table's next copy waits for it."""
        record.copy.wait_for_session(self._reopen())
