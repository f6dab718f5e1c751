"""The turns of a rolling update: drivers that are restarting because an upgrade of the operator replaced their pods."""

from __future__ import annotations

import sys
from datetime import datetime, timedelta

from levada_operator.decide.rollout import is_updating, update_time
from levada_operator.names import driver_name, driver_pod
from levada_operator.observe.cluster_cache import ClusterCache
from levada_operator.observe.objects import PipelineKey


class UpdateTurns:
    """Counts the drivers that are restarting. ``deadline`` is how long each may take before it no longer counts.

    A restart counts if this process began it, or if it was under way when the process started. Anybody who may edit a
    StatefulSet can write the time of another one.
    """

    def __init__(self, cache: ClusterCache, deadline: timedelta) -> None:
        self._cache = cache
        self._deadline = deadline
        self._beginning: set[PipelineKey] = set()
        self._updating: set[PipelineKey] = set()
        self._begun_at: dict[PipelineKey, datetime | None] | None = None

    def others(self, key: PipelineKey) -> int:
        """Return how many drivers of other Pipelines are restarting, more than any limit before the first count."""
        return sys.maxsize if self._begun_at is None else len(self._updating - {key})

    def begin(self, key: PipelineKey) -> None:
        """Take a turn for a plan that replaces a ready driver. Call it before the plan's first write."""
        self._beginning.add(key)
        self._updating.add(key)

    def end(self, key: PipelineKey, now: datetime) -> None:
        """Record that the plan was carried out as far as possible. A refused plan gives its turn back."""
        if key in self._beginning and self._begun_at is not None:
            self._begun_at[key] = self._time(key)
        self._beginning.discard(key)
        if self._cache.is_refused(key) and not self._is_updating(key, now):
            self._updating.discard(key)

    def refresh(self, now: datetime) -> bool:
        """Count again, from the cached objects. Call it after lists of StatefulSets and Pods.

        Return True if the count differs, so that another Pipeline may have its turn.
        """
        before = None if self._begun_at is None else self._updating
        owners = self._cache.owners()
        if self._begun_at is None:
            self._begun_at = {key: self._time(key) for key in owners}
        self._begun_at = {key: self._begun_at[key] for key in owners if key in self._begun_at}
        self._updating = self._beginning | {key for key in owners if self._is_updating(key, now)}
        return self._updating != before

    def _time(self, key: PipelineKey) -> datetime | None:
        return update_time(self._cache.child(key, "StatefulSet", driver_name(key.name)))

    def _is_updating(self, key: PipelineKey, now: datetime) -> bool:
        driver = self._cache.child(key, "StatefulSet", driver_name(key.name))
        if driver is None or self._begun_at is None or self._begun_at.get(key) != update_time(driver):
            return False
        return is_updating(driver, self._cache.child(key, "Pod", driver_pod(key.name)), now, self._deadline)
