"""Recovery of the epoch after a store was lost, or restored from a backup.

The epoch is lower than the destination's then, which refuses it. Each start raises it by one, so that many starts would
fail before one succeeds.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from levada.destinations.answers import require_watermark
from levada.destinations.interface import Destination
from levada.errors import LevadaError, StaleEpoch
from levada.postgres.catalog import read_table_ids
from levada.postgres.kept_sessions import SESSIONS
from levada.runtime.config import PipelineConfig
from levada.runtime.destination_errors import destination_errors
from levada.runtime.source.preparation import covered_tables
from levada.segments.manifest import Manifest
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


def epoch_above(store: PipelineStore, epoch: int, used: Iterable[int]) -> int:
    """Raise the epoch of this process, ``epoch``, above each of ``used``, and return it."""
    highest = max(used, default=0)
    if epoch <= highest:
        _log.warning("the store has no state of this pipeline, and epoch %d was used before", highest)
    while epoch <= highest:
        store.require_epoch()
        epoch = store.next_epoch()
    return epoch


def used_epochs(config: PipelineConfig, destination: Destination, manifests: Iterable[Manifest]) -> Iterator[int]:
    """Yield the epochs of the staged segments, and of the tables at the destination that report a watermark.

    Errors are logged. The copy of the table meets them again.
    """
    yield from (manifest.epoch for manifest in manifests)
    if not destination.capabilities.watermark:
        return
    try:
        with SESSIONS.session(config.source, "start") as connection:
            tables = read_table_ids(connection, covered_tables(config, connection)).values()
    except LevadaError as error:
        _log.debug("the tables of the source cannot be read, which the start reports as well: %s", error)
        return
    for table in tables:
        try:
            with destination_errors(type(destination), "applied"):
                mark = require_watermark(destination.applied(table), destination.applied)
        except LevadaError as error:
            _log.debug("the watermark of table %d cannot be read: %s", table, error)
            if error.retried:
                return
        else:
            if mark is not None:
                yield mark.epoch
