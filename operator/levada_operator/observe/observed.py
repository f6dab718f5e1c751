"""The observed state of one Pipeline: the only input of a decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from levada.status import Progress
from levada.values import age_of
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
"""Maximum age of a progress report. An older one counts as missing."""

FAILURE_HELD_FOR: Final = timedelta(minutes=15)
"""Time for which the last failure of a restarted driver is reported while the driver is not ready yet.

Kubernetes' back-off between restarts ends at 5 minutes, so a driver that runs for longer is not in a crash loop.
"""


@dataclass(frozen=True, slots=True)
class Observed:
    """One Pipeline, at ``now``.

    ``conflicts`` are the namespace's older Pipelines with the same source database and slot, by name. ``moved_at`` is
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
    has_default_storage: bool = False
    """True if the cluster had a default StorageClass when it was listed last."""
    report: ProgressReport | None = None
    """The last progress that could be read from the driver."""
    unreadable: str = ""
    """Why the driver's last answer could not be read. Empty if it could."""
    unread_tables: str = ""
    """A TableSync of the namespace whose settings are not known, and why. Empty if all are read."""
    moved_at: datetime | None = None
    conflicts: tuple[str, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    updating: int = 0
    faults: tuple[str, ...] = ()
    """The namespace's objects that could not be read, and why."""
    creation_failures: Mapping[ObjectKey, CreationFailure] = field(default_factory=dict)
    """Failures to create a pod, by the StatefulSet or Job that has none."""

    @property
    def driver(self) -> PodState | None:
        """The driver's pod, or None. Its last failure is dropped once the container has run for `FAILURE_HELD_FOR`."""
        pod = next((p for p in self.pods if p.name == driver_pod(self.pipeline.name)), None)
        if pod is None or pod.failure is None or pod.failure.runs_since is None:
            return pod
        # The node's clock may have been ahead when the container started.
        passed = abs(self.now - pod.failure.runs_since) > FAILURE_HELD_FOR
        return replace(pod, failure=None) if passed else pod

    @property
    def progress(self) -> Progress | None:
        """The driver's progress as of `report`."""
        return None if self.report is None else self.report.progress

    @property
    def fresh_progress(self) -> Progress | None:
        """The driver's progress, or None if the report is older than `STALE_AFTER`."""
        if self.report is None or age_of(self.report.fetched_at, self.now) > STALE_AFTER:
            return None
        return self.report.progress
