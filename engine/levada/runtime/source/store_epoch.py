"""Recovery of the epoch after a store was restored from a backup.

The restored epoch is lower than the destination's, which refuses it. Each start raises it by one, so that many starts
would fail before one succeeds.
"""

from __future__ import annotations

import logging

from levada.errors import LevadaError, StaleEpoch
from levada.stores.interface import PipelineStore

_log = logging.getLogger(__name__)


def raise_epoch(store: PipelineStore, refused: StaleEpoch) -> None:
    """Raise the store's epoch to the destination's, so that the next start has a higher one.

    ``refused`` is the destination's refusal. If another process has taken over the store, the refusal is right, and
    the epoch stays.
    """
    try:
        store.require_epoch()
        while store.next_epoch() < refused.current:
            pass
    except LevadaError:
        return
    _log.warning("the store's epoch was older than the destination's: the next start has epoch %d", refused.current + 1)
