"""The patience of the guard: how long a passed limit waits before a policy acts that costs a new copy.

It outlives the process. Without that, an engine that restarts again and again would never act.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from levada.runtime.config import GuardLimit
from levada.runtime.tables.guard_rules import recedes
from levada.status import GuardMeasure, GuardPolicy
from levada.status.document import Part
from levada.stores.interface import PipelineStore

_SUBJECT: Final = "guard_patience"
_MOST_RESTARTS: Final = 3
"""The number of restarts in a row after which the guard acts at its first comparison."""


@dataclass(frozen=True, slots=True)
class _StoredWait(Part):
    """A wait of this process or of an earlier one. ``restarts`` counts the processes before it that ended early."""

    measure: GuardMeasure
    policy: GuardPolicy
    value: int
    figure: int
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class _StoredWaits(Part):
    waits: tuple[_StoredWait, ...] = ()


@dataclass(frozen=True, slots=True)
class _Wait:
    """The figure of a passed limit, and since when it does not recede. ``since`` is in seconds, monotonic."""

    since: float
    figure: int
    restarts: int


class Patience:
    """Decides when to act on a limit: it has been passed for a while, and its figure does not recede.

    If a process ends before that, the next one waits for a third less, unless the figure has become better meanwhile.
    """

    def __init__(self, store: PipelineStore) -> None:
        self._store = store
        self._waits: dict[GuardLimit, _Wait] = {}

    def is_due(self, limit: GuardLimit, figure: int, now: float, patience_s: float) -> bool:
        """Return True if the policy acts on the figure of a passed limit. Another wait begins then."""
        wait = self._waits.get(limit) or self._begin(limit, figure, now)
        if now - wait.since < patience_s * (_MOST_RESTARTS - wait.restarts) / _MOST_RESTARTS:
            return False
        # What an action releases is seen a while later.
        self._keep(limit, _Wait(now, figure, 0))
        return not recedes(limit.measure, wait.figure, figure)

    def forget(self, limit: GuardLimit) -> None:
        """End the wait for a limit that is not passed, also that of an earlier process."""
        stored = self._stored()
        if self._waits.pop(limit, None) is not None or limit in stored:
            self._save({other: wait for other, wait in stored.items() if other != limit})

    def _begin(self, limit: GuardLimit, figure: int, now: float) -> _Wait:
        before = self._stored().get(limit)
        unchanged = before is not None and not recedes(limit.measure, before.figure, figure)
        restarts = min(before.restarts + 1, _MOST_RESTARTS) if before is not None and unchanged else 0
        return self._keep(limit, _Wait(now, figure, restarts))

    def _keep(self, limit: GuardLimit, wait: _Wait) -> _Wait:
        self._waits[limit] = wait
        stored = _StoredWait(limit.measure, limit.policy, limit.value, wait.figure, wait.restarts)
        self._save({**self._stored(), limit: stored})
        return wait

    def _stored(self) -> Mapping[GuardLimit, _StoredWait]:
        text = self._store.get_fingerprint(_SUBJECT)
        try:
            found = _StoredWaits() if text is None else _StoredWaits.from_json(json.loads(text))
        except (ValidationError, ValueError):
            return {}
        return {GuardLimit(wait.measure, wait.policy, wait.value): wait for wait in found.waits}

    def _save(self, waits: Mapping[GuardLimit, _StoredWait]) -> None:
        self._store.store_fingerprint(_SUBJECT, json.dumps(_StoredWaits(tuple(waits.values())).to_json()))
