"""The pod of a clean-up that does not start, and why."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from levada_operator.names import CLEANUP_ROLE
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


def obstacle_text(observed: Observed) -> str:
    """Return why the clean-up waits, or an empty string. Another node may take its pod yet."""
    failure = start_failure(observed, "Unschedulable")
    return "" if failure is None else f"the clean-up waits: {failure.message}"
