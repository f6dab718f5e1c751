"""Tell a live operator from one that only looks so: a watch that has gone quiet, a sweep that no longer ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from levada_operator.observe.objects import PipelineKey

SWEEP_DEADLINE_S: Final = 120.0
WATCH_DEADLINE_S: Final = 90.0
"""How long a change may be in a list before kopf's watch has told of it."""


class Watchdog:
    """``clock`` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._swept_at = clock()
        self._missed: dict[PipelineKey, tuple[str, float]] = {}

    def swept(self) -> None:
        """Note that a sweep has ended well."""
        self._swept_at = self._clock()

    def compare(self, listed: Mapping[PipelineKey, str], watched: Mapping[PipelineKey, str]) -> None:
        """Compare the resource versions of Pipelines that a list has with those that the watch told of."""
        now = self._clock()
        missed: dict[PipelineKey, tuple[str, float]] = {}
        for key, version in listed.items():
            if _behind(watched.get(key), version):
                # The same object may change again and again; what counts is how long the watch has trailed.
                _, since = self._missed.get(key, (version, now))
                missed[key] = (version, since)
        self._missed = missed

    def unhealthy_reason(self) -> str:
        """Return why this process should be restarted, empty if it should not."""
        now = self._clock()
        if now - self._swept_at > SWEEP_DEADLINE_S:
            return f"no sweep has ended for {now - self._swept_at:.0f} s"
        for key, (_, since) in self._missed.items():
            if now - since > WATCH_DEADLINE_S:
                return f"the watch has told nothing of {key.namespace}/{key.name} for {now - since:.0f} s"
        return ""


def _behind(watched: str | None, listed: str) -> bool:
    if watched is None:
        return True
    if watched.isdigit() and listed.isdigit():
        return int(watched) < int(listed)
    return watched != listed
