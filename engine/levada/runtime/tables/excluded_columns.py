"""The excluded and the masked columns of each table, by which capture leaves them out of the stream or masks them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from levada.runtime.config_ref import ConfigRef
from levada.runtime.tables.record import TableRecord
from levada.runtime.tables.requests import CopyColumns, CopySettings
from levada.schema import ReplicatedTableSchema
from levada.schema.masks import TableMasks
from levada.stores.phases import Init
from levada.values import TableId


class ExcludedColumns:
    """Keeps each copied table's excluded columns and masks until the next copy.

    ``reopen`` requests a new replication session, and returns its number. ``exclude`` sets the columns of a table that
    the stream leaves out, and the masks of others, from the next session on. Without that, each schema version keeps
    those of the one before.
    """

    def __init__(
        self,
        config_ref: ConfigRef,
        reopen: Callable[[], int],
        exclude: Callable[[TableId, frozenset[str], TableMasks], None],
    ) -> None:
        self._config_ref = config_ref
        self._reopen = reopen
        self._exclude = exclude
        self._columns: dict[TableId, tuple[frozenset[str], TableMasks]] = {}

    def with_columns(self, record: TableRecord, settings: CopySettings) -> CopySettings:
        """Return the settings with the columns of the stream, from the session on that the next copy waits for."""
        excluded, masks = self._columns[record.id]
        return replace(settings, excluded_columns=excluded, masks=masks)

    def add(self, record: TableRecord, last: CopySettings | None, newest: ReplicatedTableSchema | None) -> None:
        """Keep the columns of the table's last copy, or apply the configured ones if it will be copied.

        ``newest`` is the newest schema version of the table, None if it has none.
        """
        kept = self._configured(record, last)
        if last is not None and not isinstance(record.phase, Init):
            kept = (last.excluded_columns, last.masks)
        self._columns[record.id] = kept
        # Also if the newest version has them, because the stream may begin below that version. Without a version the
        # stream reads them from the configuration, which may change before the table's first row.
        self._exclude(record.id, *kept)
        if newest is not None and (newest.excluded_columns, newest.masks) != kept:
            self.wait_for_session(record)

    def forget(self, record: TableRecord) -> None:
        """Forget the columns of a table that is no longer replicated."""
        self._columns.pop(record.id, None)

    def apply_configured(self, record: TableRecord, last: CopySettings | None) -> None:
        """Apply the configured columns to the stream. The next copy waits for a session that excludes them.

        ``last`` are the settings of the table's last copy.
        """
        columns = self._configured(record, last)
        if self._columns[record.id] != columns:
            self._columns[record.id] = columns
            self._exclude(record.id, *columns)
            self.wait_for_session(record)

    def _configured(self, record: TableRecord, last: CopySettings | None) -> tuple[frozenset[str], TableMasks]:
        columns = CopyColumns.of(self._config_ref.current, record.name, last)
        return columns.excluded, columns.masks

    def wait_for_session(self, record: TableRecord) -> None:
        """Request a new session of the stream. The table's next copy waits for it."""
        record.copy.wait_for_session(self._reopen())
