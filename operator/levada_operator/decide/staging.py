"""The place of staged changes of a Pipeline that names none: decided once, and kept in its accepted manifest.

It never changes by itself. The slot is confirmed once changes are staged durably, so another place would lack them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from levada.spec import Manifests, PipelineManifest, parse_bytes
from levada.spec.running import Staging
from levada_operator.names import staging_name
from levada_operator.observe.objects import VolumeUse
from levada_operator.observe.observed import Observed


def decide_staging(observed: Observed, written: Staging, last: Staging | None) -> Staging:
    """Return the staging section to run with. ``last`` is the one that was accepted last, see `with_decided_staging`.

    A written one that names a place or scratch space counts. Otherwise the last decision stays. A new Pipeline gets the
    volume claim that exists for it, a new one if the cluster can provide it, or scratch space.
    """
    if written.decided:
        return written
    if last is not None:
        return last
    existing = observed.owned.get("PersistentVolumeClaim", staging_name(observed.pipeline.name))
    if existing is not None:
        return _claim(_requested(existing))
    use = observed.defaults.staging.use
    if use is VolumeUse.ALWAYS or (use is VolumeUse.DETECT and observed.has_default_storage):
        return _claim(observed.defaults.staging.size)
    return Staging(scratch=True)


def lost_by_change(observed: Observed, last: Staging, new: Staging) -> str:
    """Return why the change of the place loses staged changes, or cannot be made. An empty string if it can."""
    before, after = last.volume_claim, new.volume_claim
    if before is None:
        return ""
    if after is None:
        return "spec.staging: changes that are staged on the volume would be lost"
    claim = observed.owned.get("PersistentVolumeClaim", staging_name(observed.pipeline.name))
    # A claim that the cluster did not let grow has its former size, to which the spec may return.
    if claim is not None and after.size < min(before.size, _requested(claim)):
        return "spec.staging.volumeClaim.size: a volume cannot become smaller"
    return ""


def not_smaller(claim: dict[str, Any], live: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the desired claim, with the size of the live one if another person has made it larger."""
    if live is None or _requested(live) <= _requested(claim):
        return claim
    return {**claim, "spec": {**claim["spec"], "resources": live["spec"]["resources"]}}


def with_staging(pipeline: PipelineManifest, staging: Staging) -> PipelineManifest:
    """Return the manifest with another staging section."""
    return pipeline.model_copy(update={"spec": pipeline.spec.model_copy(update={"staging": staging})})


def with_decided_staging(manifests: Manifests | None) -> Manifests | None:
    """Return the last accepted manifests. Those of an operator that decided nothing are on scratch space."""
    if manifests is None or manifests.pipeline.spec.staging.decided:
        return manifests
    return replace(manifests, pipeline=with_staging(manifests.pipeline, Staging(scratch=True)))


def _claim(size: str | int) -> Staging:
    return Staging.model_validate({"volumeClaim": {"size": size}})


def _requested(claim: Mapping[str, Any]) -> int:
    """Return the size of a claim in bytes."""
    return parse_bytes(claim["spec"]["resources"]["requests"]["storage"])
