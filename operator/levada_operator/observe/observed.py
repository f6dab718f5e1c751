"""All that is known of one Pipeline at one moment: what a decision is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from levada_operator.names import driver_pod
from levada_operator.observe.creation import CreationFailure
from levada_operator.observe.objects import (
    JobState,
    ObjectKey,
    OperatorDefaults,
    OwnedObjects,
    PipelineObject,
    Refusal,
    TableSyncObject,
)
from levada_operator.observe.pods import PodState
from levada_operator.observe.progress import ProgressReport

STALE_AFTER: Final = timedelta(seconds=60)
"""How old the last progress may be before there is no news."""

FAILURE_HELD_FOR: Final = timedelta(minutes=15)
"""How long the failure before counts for a driver that runs again and is not ready. Its back-off ends at 5 minutes."""


@dataclass(frozen=True, slots=True)
class Observed:
    """One Pipeline, at ``now``.

    ``conflicts`` are the older Pipelines with the same source database and slot, as ``namespace/name``. ``moved_at`` is
    when a position last changed, by the operator's clock. ``refusals`` are the objects of the last plan that the API
    server refused. ``updating`` is how many other Pipelines' drivers are restarting after an update.
    """

    now: datetime
    defaults: OperatorDefaults
    pipeline: PipelineObject
    table_syncs: tuple[TableSyncObject, ...] = ()
    owned: OwnedObjects = field(default_factory=OwnedObjects)
    pods: tuple[PodState, ...] = ()
    jobs: tuple[JobState, ...] = ()
    progress: ProgressReport | None = None
    moved_at: datetime | None = None
    conflicts: tuple[str, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    updating: int = 0
    creation_failures: Mapping[ObjectKey, CreationFailure] = field(default_factory=dict)
    """By the StatefulSet or Job that has no pod."""

    @property
    def driver(self) -> PodState | None:
        """The driver's pod. A failure counts until the pod is ready, or its container has run for long without."""
        pod = next((p for p in self.pods if p.name == driver_pod(self.pipeline.name)), None)
        if pod is None or pod.failure is None or pod.failure.runs_since is None:
            return pod
        passed = self.now - pod.failure.runs_since > FAILURE_HELD_FOR
        return replace(pod, failure=None) if passed else pod

    @property
    def fresh_progress(self) -> ProgressReport | None:
        """The driver's progress, unless it is too old to count."""
        if self.progress is None or self.now - self.progress.fetched_at > STALE_AFTER:
            return None
        return self.progress
