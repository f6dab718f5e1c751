"""Detection of a store that has lost the state of its pipeline.

An empty store looks like a first start, which copies every table and replaces the lake's tables. But a pipeline records
in its store that it will create a slot before it creates the slot, and stages nothing before that. A slot or staged
segments without any record in the store therefore mean that the state was lost. Its schema was dropped, its ConfigMaps
were deleted, or the manifest names another store.
"""

from __future__ import annotations

import logging
from typing import Final

from levada.errors import NeedsOperator
from levada.postgres.slots import SlotStatus
from levada.runtime.config import PipelineConfig
from levada.runtime.source.record import SourceRecord
from levada.runtime.tables.publication_gaps import has_publication_record
from levada.stores.interface import PipelineStore
from levada.values import Lsn

_log = logging.getLogger(__name__)

_HINT: Final = (
    "restore the store, or correct spec.store. If the slot is another program's, set spec.source.slot.name to another"
    " name. To copy every table again: levada resync MANIFEST --all"
)


def has_record(store: PipelineStore) -> bool:
    """Return True if the store has a record that the pipeline has run. Its phases and fingerprints are loaded."""
    return bool(store.get_table_replication_states()) or SourceRecord(store).known or has_publication_record(store)


def lost_state(config: PipelineConfig, slot: SlotStatus | None, staged: Lsn) -> NeedsOperator | None:
    """Return the error ``store_empty`` of a store without a record of the pipeline, or None for a first start. Pure.

    ``staged`` is the end of the newest segment, 0 without segments.
    """
    found = [*([f"slot {slot.name}"] if slot else []), *(["staged segments"] if staged else [])]
    if not found:
        return None
    verb = "exist" if staged else "exists"
    message = f"the store has no state of pipeline {config.name}, but {' and '.join(found)} {verb}: the state was lost"
    return NeedsOperator("store_empty", message, hint=_HINT)


def require_state(
    config: PipelineConfig, store: PipelineStore, slot: SlotStatus | None, staged: Lsn, *, recorded: bool
) -> None:
    """Raise NeedsOperator ``store_empty`` if the store has lost the pipeline's state and ``slot.onLost`` is Hold.

    Otherwise a warning is logged, and every table is copied again. ``staged`` is the end of the newest segment, 0
    without segments. ``recorded`` is True if the store has the record that a pipeline writes before it creates its
    slot. A requested resync writes table states to the store, so the start after it succeeds.
    """
    if store.volatile or recorded or store.get_table_replication_states():
        return
    lost = lost_state(config, slot, staged)
    if lost is None:
        return
    if not config.slot.resync_when_lost:
        raise lost
    _log.warning("%s. Every table is copied again, because spec.source.slot.onLost is not Hold", lost.message)
