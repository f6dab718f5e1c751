"""The stored records of interrupted copies, see `levada.copy.kept`.

A record exists only while a table is at Init, DataSync or Errored before its copy is complete. The segments from its
``since`` on must be kept for the same time. Delete the record before they are released.
"""

from __future__ import annotations

import logging

from levada.copy.kept import KeptCopy
from levada.stores.interface import PipelineStore
from levada.values import TableId

_log = logging.getLogger(__name__)


def kept_copy(store: PipelineStore, table: TableId) -> KeptCopy | None:
    """Return the record of a table's interrupted copy, None if there is none that this version of Levada can use."""
    text = store.get_fingerprint(_subject(table))
    try:
        return None if text is None else KeptCopy.from_text(text)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        _log.warning("the record of the interrupted copy of table %d is not used: %s", table, type(error).__name__)
        return None


def store_kept_copy(store: PipelineStore, table: TableId, kept: KeptCopy | None) -> None:
    """Store the record, or delete it if it is None."""
    if kept is not None:
        store.store_fingerprint(_subject(table), kept.to_text())
    elif store.get_fingerprint(_subject(table)) is not None:
        store.delete_fingerprint(_subject(table))


def _subject(table: TableId) -> str:
    return f"ranges_{int(table)}"
