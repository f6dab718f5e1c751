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
from levada.stores.interface import PipelineStore
from levada.stores.memory import MemoryStore
from levada.values import Lsn

_log = logging.getLogger(__name__)

_HINT: Final = "restore the store, or correct spec.store. To copy every table again: levada resync MANIFEST --all"


def require_state(
    config: PipelineConfig, store: PipelineStore, slot: SlotStatus | None, staged: Lsn, *, recorded: bool
) -> None:
    """Raise NeedsOperator ``store_empty`` if the store has lost the pipeline's state and ``slot.onLost`` is Hold.

    With Resync a warning is logged, and every table is copied again. ``staged`` is the end of the newest segment, 0
    without segments. ``recorded`` is True if the store has the record that a pipeline writes before it creates its
    slot. A requested resync writes table states to the store, so the start after it succeeds.
    """
    if isinstance(store, MemoryStore) or store.get_table_replication_states():
        return
    if recorded or (slot is None and not staged):
        return
    found = " and ".join(
        what for what in (slot and f"slot {slot.name}", staged and "staged segments") if isinstance(what, str)
    )
    message = f"the store has no state of pipeline {config.name}, but {found} exist: the state was lost"
    if not config.slot.resync_when_lost:
        raise NeedsOperator("store_empty", message, hint=_HINT)
    _log.warning("%s. Every table is copied again, because spec.source.slot.onLost is Resync", message)
