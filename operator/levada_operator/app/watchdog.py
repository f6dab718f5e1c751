"""The watchdog of the liveness probe: detects a watch that is silent, and sweeps that no longer end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from levada_operator.observe.objects import PipelineKey

SWEEP_DEADLINE_S: Final = 120.0
WATCH_DEADLINE_S: Final = 90.0
"""Time after which a listed change must have arrived by the watch, or at least anything else.

A watch may lag behind, because one tenant changes much or the API server is busy. A restart would not make it faster.
"""


class Watchdog:
    """Tracks sweeps and missed watch events. ``clock`` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._swept_at = clock()
        self._missed: dict[PipelineKey, tuple[str, float]] = {}
        self._heard: dict[str, float] = {}

    def heard(self, watch: str) -> None:
        """Record that a watch reported an object. ``watch`` is its namespace, or empty for that of all namespaces."""
        self._heard[watch] = self._clock()

    def swept(self) -> None:
        """Record that a sweep succeeded."""
        self._swept_at = self._clock()

    def compare(self, namespace: str, listed: Mapping[PipelineKey, str], watched: Mapping[PipelineKey, str]) -> None:
        """Compare a namespace's listed resource versions of Pipelines with those that the watch reported."""
        now = self._clock()
        for key in [key for key in self._missed if key.namespace == namespace and key not in listed]:
            del self._missed[key]
        for key, version in listed.items():
            # A version counts as missed until the watch has it, or a later one. An object may change all the time.
            missed = self._missed.get(key)
            if missed is not None and not _behind(watched.get(key), missed[0]):
                del self._missed[key]
                missed = None
            if missed is None and _behind(watched.get(key), version):
                self._missed[key] = (version, now)

    def unhealthy_reason(self) -> str:
        """Return why this process should be restarted, or an empty string."""
        now = self._clock()
        if now - self._swept_at > SWEEP_DEADLINE_S:
            return f"no sweep has ended for {now - self._swept_at:.0f} s"
        for key, (_, since) in self._missed.items():
            heard = max(self._heard.get(watch, since) for watch in ("", key.namespace))
            if now - max(since, heard) > WATCH_DEADLINE_S:
                return f"the watch has reported nothing, not even {key.namespace}/{key.name}, for {now - heard:.0f} s"
        return ""


def _behind(watched: str | None, listed: str) -> bool:
    if watched is None:
        return True
    if watched.isdigit() and listed.isdigit():
        return int(watched) < int(listed)
    return watched != listed
