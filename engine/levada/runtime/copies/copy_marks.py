"""Marks in the store for as long as the table at the destination is not what the settings of its last copy say.

Settings are stored before the rows are written. So a copy that was interrupted leaves settings that its table does not
have yet. A table that keeps deleted rows must not take over rows of an earlier one with other masks.
"""

from __future__ import annotations

from levada.stores.interface import PipelineStore
from levada.values import TableId


class CopyMarks:
    """The marks of all tables. They outlive the process."""

    def __init__(self, store: PipelineStore) -> None:
        self._store = store

    def first_begins(self, table: TableId) -> None:
        """Record that a table that keeps rows has none to keep, until its first copy is complete."""
        self._store.store_fingerprint(_first_copy(table), "1")

    def masks_change(self, table: TableId) -> None:
        """Record that the table has other masks than the settings that are about to be stored."""
        self._store.store_fingerprint(_other_masks(table), "1")

    def masks_are_new(self, table: TableId) -> None:
        """Record that no row with other masks is left."""
        self._forget(_other_masks(table))

    def complete(self, table: TableId) -> None:
        """Record that the table is what its settings say."""
        self._forget(_other_masks(table))
        self._forget(_first_copy(table))

    def has_no_copy(self, table: TableId) -> bool:
        """Return True if a table that keeps rows was never complete."""
        return self._store.get_fingerprint(_first_copy(table)) is not None

    def has_other_masks(self, table: TableId) -> bool:
        """Return True if the table may have rows with other masks than its settings."""
        return self._store.get_fingerprint(_other_masks(table)) is not None

    def _forget(self, subject: str) -> None:
        if self._store.get_fingerprint(subject) is not None:
            self._store.delete_fingerprint(subject)


def _other_masks(table: TableId) -> str:
    return f"other_masks_{int(table)}"


def _first_copy(table: TableId) -> str:
    return f"first_copy_{int(table)}"
