"""The guard of a start that waits for the destination: a slot of an earlier start keeps WAL meanwhile."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from typing import Final

from levada.errors import LevadaError
from levada.postgres.lag import sample_lag
from levada.runtime.config import GuardLimit, PipelineConfig
from levada.runtime.source.slot_release import release_slot
from levada.runtime.tables.guard_patience import Patience
from levada.runtime.tables.guard_record import record_release
from levada.runtime.tables.guard_rules import comparison, figures, in_force
from levada.runtime.watching import repeated
from levada.status import GuardMeasure, GuardPolicy, SlotProgress
from levada.stores.interface import PipelineStore

_log = logging.getLogger(__name__)

_EVERY_S: Final = 5.0


def guarded_start(
    config: PipelineConfig, store: PipelineStore, patience: Patience, stopping: threading.Event
) -> AbstractContextManager[None]:
    """Drop the slot during the block if it passes a limit of ReleaseSlot, as the guard of a running pipeline does.

    Nothing else in the block writes to the store. The start finds that the slot is missing. ``stopping`` ends the
    attempts to drop it.
    """
    if not release_limits(config):
        return nullcontext()
    passed = frozenset[GuardLimit]()

    def compare(_: threading.Event) -> bool:
        nonlocal passed
        try:
            passed = _compare(config, store, patience, passed, stopping)
        except LevadaError as error:
            if not error.passes:
                # The start reports it, for example that another process has taken over.
                _log.warning("the slot is not watched while the start waits: %s", error)
                return False
            _log.warning("sampling the slot failed while the start waits: %s", error.message)
        return True

    return repeated(compare, _EVERY_S, "levada-start-guard")


def _compare(
    config: PipelineConfig,
    store: PipelineStore,
    patience: Patience,
    before: frozenset[GuardLimit],
    stopping: threading.Event,
) -> frozenset[GuardLimit]:
    """Drop the slot if it is due. Return the limits that are passed."""
    known = wal_figures(config)
    limits = [limit for limit in release_limits(config) if limit.measure in known]
    passed = in_force(limits, known, before)
    for limit in limits:
        if limit not in passed:
            patience.forget(limit)
        elif patience.is_due(limit, known[limit.measure], time.monotonic(), config.guard_patience_s):
            text = comparison(limit, known[limit.measure])
            _log.warning("guard: %s, so slot %s is dropped while the start waits", text, config.slot.name)
            record_release(store, limit, config.slot.name, text, datetime.now(UTC))
            release_slot(config, store, stopping)
            return frozenset()
    return passed


def release_limits(config: PipelineConfig) -> tuple[GuardLimit, ...]:
    """Return the limits at which the slot is dropped."""
    return tuple(limit for limit in config.guard if limit.policy is GuardPolicy.RELEASE_SLOT)


def wal_figures(config: PipelineConfig) -> Mapping[GuardMeasure, int]:
    """Return the figures of the guard for the slot, none without a slot. Raise as `sample_lag` does."""
    sample = sample_lag(config.source, config.slot.name)
    if sample is None:
        return {}
    slot = SlotProgress(
        config.slot.name, retained_bytes=sample.retained_bytes, safe_wal_bytes=sample.status.safe_wal_size
    )
    return figures(slot, 0, None)
