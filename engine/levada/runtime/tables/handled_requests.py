"""The requests for each table that were acted on, in the store."""

from __future__ import annotations

from dataclasses import replace

from levada.runtime.config_ref import ConfigRef
from levada.runtime.tables.record import TableRecord
from levada.runtime.tables.requests import CopySettings
from levada.runtime.tables.verification_record import (
    VerificationRecord,
    store_verification,
    verification_record,
)
from levada.status import VerifiedProgress
from levada.stores.interface import PipelineStore, TableControls
from levada.stores.phases import Init
from levada.values import TableId


class HandledRequests:
    """Compares what the manifest requests for a table with the store's record of what was done."""

    def __init__(self, config_ref: ConfigRef, store: PipelineStore) -> None:
        self._config_ref = config_ref
        self._store = store
        self._parsed: dict[TableId, tuple[str, CopySettings]] = {}
        """The last copy's settings by their text. Each report of the progress needs those of all tables."""

    def controls(self, record: TableRecord) -> TableControls:
        """Return the nonces that were acted on for the table, and the settings of its last copy."""
        return self._store.get_table_controls(record.id) or TableControls()

    def verification(self, record: TableRecord) -> VerificationRecord:
        """Return the table's last verification, with the nonce that was handled."""
        return verification_record(self._store, record.id)

    def last_settings(self, record: TableRecord) -> CopySettings | None:
        """Return the settings of the table's last copy, None before the first."""
        made_as = self.controls(record).made_as
        if not made_as:
            return None
        known = self._parsed.get(record.id)
        if known is None or known[0] != made_as:
            known = self._parsed[record.id] = made_as, CopySettings.from_text(made_as)
        return known[1]

    def wanted_settings(self, record: TableRecord) -> CopySettings:
        """Return the settings for a copy of the table that begins now."""
        return CopySettings.of(self._config_ref.current, record.name, self.last_settings(record))

    def settings(self, record: TableRecord) -> CopySettings:
        """Return the settings of the table's last copy, or the configured ones before the first."""
        return self.last_settings(record) or self.wanted_settings(record)

    def add(self, record: TableRecord) -> None:
        """Record a table that is seen for the first time.

        Nonces that are already set count as handled. The current settings are recorded for an older copy.
        """
        if self._store.get_table_controls(record.id) is not None:
            return
        table_config = self._config_ref.current.table(record.name)
        copied = "" if isinstance(record.phase, Init) else self.wanted_settings(record).to_text()
        controls = TableControls(table_config.retry_nonce, table_config.resync_nonce, copied)
        self._store.store_table_controls(record.id, controls)
        verified = verification_record(self._store, record.id)
        store_verification(self._store, record.id, replace(verified, nonce=table_config.verify_nonce))

    def copied(self, record: TableRecord, verified: VerifiedProgress | None = None) -> None:
        """Record that the table was copied. Its last comparison is that of the copy, if that was compared."""
        known = replace(self.verification(record), last=verified, error=None, differs=None)
        store_verification(self._store, record.id, replace(known, proof=None, proved_key="", proved_to=None))

    def follow_name(self, record: TableRecord, *, follows: bool) -> None:
        """Record whether the table's next copy has the place of its name, and not the one of its last copy."""
        controls, last = self.controls(record), self.last_settings(record)
        if last is not None and last.follows is not follows:
            noted = replace(controls, made_as=replace(last, follows=follows).to_text())
            self._store.store_table_controls(record.id, noted)

    def mark_handled(self, record: TableRecord) -> None:
        """Record that the manifest's nonces were acted on."""
        table_config, controls = self._config_ref.current.table(record.name), self.controls(record)
        noted = replace(controls, retry_nonce=table_config.retry_nonce, resync_nonce=table_config.resync_nonce)
        if noted != controls:
            self._store.store_table_controls(record.id, noted)
