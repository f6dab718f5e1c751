"""The pod of a clean-up that does not start, and why."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from levada_operator.names import CLEANUP_ROLE, SKIP_CLEANUP
from levada_operator.observe.observed import Observed
from levada_operator.observe.pods import PodFailure

START_DEADLINE: Final = timedelta(seconds=60)
"""Time that the clean-up's pod has to start before an obstacle is reported, or counts as permanent."""


def start_failure(observed: Observed, reason: str) -> PodFailure | None:
    """Return the failure of that reason once it has lasted for `START_DEADLINE`, else None."""
    for pod in observed.pods:
        old = abs(observed.now - pod.created) > START_DEADLINE
        if pod.role == CLEANUP_ROLE and old and pod.failure is not None and pod.failure.reason == reason:
            return pod.failure
    return None


def waiting_text(observed: Observed) -> str:
    """Return what a deletion waits for, with the command that ends the waiting, or an empty string.

    Unlike `obstacle_text` it has a cause that may pass within seconds too.
    """
    pipeline = observed.pipeline
    if observed.driver is not None:
        return "the driver is being stopped"
    if not (why := failure_text(observed)):
        return ""
    command = f"kubectl annotate pipeline {pipeline.name} -n {pipeline.namespace} {SKIP_CLEANUP}=true"
    return f"the clean-up waits: {why}; to delete the Pipeline without it: {command}"


def failure_text(observed: Observed) -> str:
    """Return why the newest pod of the clean-up does not run, or an empty string."""
    pods = sorted((p for p in observed.pods if p.role == CLEANUP_ROLE), key=lambda p: p.created)
    return next((p.failure.text for p in reversed(pods) if p.failure is not None), "")


def obstacle_text(observed: Observed) -> str:
    """Return why the clean-up waits, or an empty string. Another node may take its pod yet."""
    failure = start_failure(observed, "Unschedulable")
    return "" if failure is None else f"the clean-up waits: {failure.message}"
