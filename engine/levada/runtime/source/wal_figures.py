"""The figures of the WAL that the pipeline's slot keeps, while no pipeline runs that samples them."""

from __future__ import annotations

from collections.abc import Mapping

from levada.postgres.lag import sample_lag
from levada.runtime.config import GuardLimit, PipelineConfig
from levada.runtime.tables.guard_rules import figures
from levada.status import GuardMeasure, GuardPolicy, SlotProgress


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
