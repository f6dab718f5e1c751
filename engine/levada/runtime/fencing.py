"""The check that this process drives the pipeline, made before it removes what a newer driver may use.

The store refuses writes of a process that was superseded, and so do the tables of a destination. A slot, a publication
and staged files know no epoch. A process that was paused for long must ask the store before it changes one of them.
"""

from __future__ import annotations

from typing import Final

from levada.stores.interface import StateStore

_CHECK: Final = "epoch"
"""A worker that has no progress: to delete it changes nothing, and is refused to a stale epoch."""


def require_epoch(store: StateStore) -> None:
    """Raise StaleEpoch if another process has taken the pipeline over."""
    store.delete_replication_progress(_CHECK)
