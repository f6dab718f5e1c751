"""A store that is older than the destination: it was put back to an earlier state, and its epoch with it.

The destination refuses that epoch. Each start raises it by one, so many starts would fail before one goes on.
"""

from __future__ import annotations

import logging

from levada.errors import LevadaError, StaleEpoch
from levada.stores.interface import PipelineStore

_log = logging.getLogger(__name__)


def overtake(store: PipelineStore, refused: StaleEpoch) -> None:
    """Raise the store's epoch to the one that refused this process, unless another process has taken the store over."""
    try:
        store.require_epoch()
        while store.next_epoch() < refused.current:
            pass
    except LevadaError:
        return
    _log.warning("the store is older than the destination: the next start has epoch %d", refused.current + 1)
