"""Decisions about what is observed, as the tests ask for them."""

from __future__ import annotations

from typing import Any

from tests.operator.samples import at, pipeline, written

from levada_operator.decide.acceptance import accept
from levada_operator.decide.conditions import Condition
from levada_operator.decide.phase import pipeline_phase
from levada_operator.decide.pipeline_conditions import pipeline_conditions
from levada_operator.decide.reconcile import reconcile
from levada_operator.observe.creation import CreationFailure, read_creation_failure
from levada_operator.observe.observed import Observed

SUSPENDED = pipeline(spec={"suspend": True})


def conditions(seen: Observed) -> dict[str, Condition]:
    """Return the conditions of the Pipeline's status."""
    return pipeline_conditions(seen, accept(seen))


def phase(seen: Observed) -> str:
    """Return the phase that is printed."""
    return pipeline_phase(conditions(seen), deleting=seen.pipeline.deleting_since is not None).value


def statuses(seen: Observed) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the status of the Pipeline and that of its only TableSync."""
    found = {w.key.kind: w.status for w in reconcile(seen).statuses}
    return found["Pipeline"], found["TableSync"]


def copies(seen: Observed) -> list[dict[str, Any]]:
    """Return the copy Jobs that the plan creates."""
    return [b for b in reconcile(seen).apply if b["metadata"]["labels"]["levada.dev/role"] == "copy"]


def creation_failure(message: str) -> CreationFailure:
    """Return what a controller's Event reports."""
    text = f"create Pod shop-driver-0 in StatefulSet shop-driver failed error: {message}"
    event = {"metadata": {}, "involvedObject": {"uid": "uid-sts"}, "message": text, "lastTimestamp": written(at(-5))}
    return read_creation_failure(event)
