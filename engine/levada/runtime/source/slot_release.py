"""The end of a slot that would fill the source's disk."""

from __future__ import annotations

import logging
import threading

from levada.errors import LevadaError
from levada.postgres.kept_sessions import SESSIONS
from levada.postgres.slots import drop_slot
from levada.runtime.config import PipelineConfig
from levada.stores.interface import PipelineStore

_log = logging.getLogger(__name__)


def release_slot(config: PipelineConfig, store: PipelineStore, stop: threading.Event) -> None:
    """Drop the pipeline's slot. Retry with back-off until that succeeds or ``stop`` is set.

    A stream that still uses the slot has 30 seconds to end by itself. After that, the source ends it, because capture
    may wait for a staging area that does not answer.

    A start without the slot finds that it is lost, and does what ``onLost`` says. Raise the error of an attempt that
    cannot be retried, for example StaleEpoch.
    """
    attempt, slot = 0, config.slot.name
    while not stop.is_set():
        try:
            with SESSIONS.session(config.source, "guard") as connection:
                drop_slot(connection, slot, terminate=attempt > 0, check=store.require_epoch)
        except LevadaError as error:
            if not error.passes:
                raise
            attempt += 1
            delay_s = config.retries.delay(attempt)
            _log.warning("slot %s cannot be dropped yet, next attempt in %.0f s: %s", slot, delay_s, error)
            stop.wait(delay_s)
        else:
            _log.warning("slot %s is dropped", slot)
            return
