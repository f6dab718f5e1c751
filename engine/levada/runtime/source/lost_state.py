"""Detection of a store that has lost the state of its pipeline.

An empty store looks like a first start, which copies every table and replaces what the lake has. But a pipeline
records in its store that it makes its slot before it does, and stages nothing before that. So a slot or staged segments
of a pipeline of which the store knows nothing mean that the state was lost: a schema was dropped, ConfigMaps were
deleted, or the manifest names another store.
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

_HINT: Final = (
    "restore the store, or name the right one in spec.store. To copy every table again: levada resync MANIFEST --all"
)


def require_state(
    config: PipelineConfig, store: PipelineStore, slot: SlotStatus | None, staged: Lsn, *, recorded: bool
) -> None:
    """Raise NeedsOperator ``store_empty`` if the store has lost the pipeline's state and the policy is to hold.

    ``staged`` is the end of the newest segment. ``recorded``: the store has the record that is made before the slot. A
    requested resync leaves its mark in the store, so that the next start goes on.
    """
    if isinstance(store, MemoryStore) or store.get_table_replication_states():
        return
    if recorded or (slot is None and not staged):
        return
    found = " and ".join(
        what for what in (slot and f"slot {slot.name}", staged and "staged segments") if isinstance(what, str)
    )
    message = f"the store knows nothing of pipeline {config.name}, but there is {found}: its state was lost"
    if not config.slot.resync_when_lost:
        raise NeedsOperator("store_empty", message, hint=_HINT)
    _log.warning("%s. Every table is copied again, as spec.source.slot.onLost is Resync", message)
