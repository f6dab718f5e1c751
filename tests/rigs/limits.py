"""Limits of pipelines that a test starts by a manifest, which has no field for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from levada.runtime.config import PipelineConfig
from levada.runtime.host.assembly import pipeline_config
from levada.runtime.limits import Limits


def limited(limits: Limits) -> Callable[..., PipelineConfig]:
    """Return a function like `pipeline_config` whose pipelines have these limits."""

    def limited_config(*args: Any, **more: Any) -> PipelineConfig:
        return replace(pipeline_config(*args, **more), limits=limits)

    return limited_config
