"""The excluded columns of each table's copy, by which capture leaves them out of the stream."""

from __future__ import annotations

from collections.abc import Callable

from levada.runtime.config_ref import ConfigRef
from levada.runtime.tables.record import TableRecord
from levada.runtime.tables.requests import CopySettings
from levada.stores.phases import Init


class ExcludedColumns:
    """Keeps each copied table's excluded columns until the next copy.

    ``reopen`` requests a new replication session, which excludes the newest columns, and returns its number.
    """

    def __init__(self, config_ref: ConfigRef, reopen: Callable[[], int]) -> None:
        self._config_ref = config_ref
        self._reopen = reopen

    def add(self, record: TableRecord, last: CopySettings | None) -> None:
        """Keep the columns of the table's last copy, or the configured ones if it will be copied."""
        configured = self._config_ref.current.table(record.name).excluded_columns
        begins = last is None or isinstance(record.phase, Init)
        self._config_ref.columns[record.name] = configured if begins or last is None else last.excluded_columns

    def forget(self, record: TableRecord) -> None:
        """Forget the columns of a table that is no longer replicated."""
        self._config_ref.columns.pop(record.name, None)

    def apply_configured(self, record: TableRecord) -> None:
        """Apply the configured columns to the stream. The next copy waits for a session that excludes them."""
        configured = self._config_ref.current.table(record.name).excluded_columns
        if self._config_ref.columns.get(record.name) != configured:
            self._config_ref.columns[record.name] = configured
            self.wait_for_session(record)

    def wait_for_session(self, record: TableRecord) -> None:
        """Request a new session of the stream. The table's next copy waits for it."""
        record.copy.wait_for_session(self._reopen())
