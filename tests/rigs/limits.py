"""Limits of pipelines of several tests, also of those that a manifest starts, which has no field for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from levada.runtime.config import PipelineConfig
from levada.runtime.host.assembly import pipeline_config
from levada.runtime.limits import Limits, VerificationLimits

PATIENT: Final = Limits(verifications=VerificationLimits(attempts=1000))
"""The limits of a pipeline whose comparisons may be disturbed as often as a busy machine lets writers do so."""


def limited(limits: Limits) -> Callable[..., PipelineConfig]:
    """Return a function like `pipeline_config` whose pipelines have these limits."""

    def limited_config(*args: Any, **more: Any) -> PipelineConfig:
        return replace(pipeline_config(*args, **more), limits=limits)

    return limited_config
