"""The guard: compares what the pipeline fills with the manifest's limits, and carries out their policies.

The rules are in `levada.runtime.tables.guard_rules`. Only the supervisor's thread uses the guard.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from levada.errors import NeedsOperator, SlotLost
from levada.postgres.failures import RESYNC_ALL
from levada.runtime.config import GuardLimit
from levada.runtime.config_ref import ConfigRef
from levada.runtime.stages.resync import ResyncStage
from levada.runtime.tables.guard_patience import Patience
from levada.runtime.tables.guard_record import guard_actions, record_action, record_release
from levada.runtime.tables.guard_rules import (
    Holding,
    comparison,
    figures,
    in_force,
    most_severe,
    pauses_copies,
    recent,
    slowest,
    waits_for_sample,
)
from levada.runtime.tables.record import TableRecord
from levada.runtime.tables.registry import TableRegistry
from levada.segments.staging import Staging
from levada.status import GuardAction, GuardMeasure, GuardPolicy, GuardProgress, PassedLimit, SlotProgress
from levada.stores.interface import PipelineStore
from levada.values import resync_command

_log = logging.getLogger(__name__)

_EVERY_S: Final = 5.0


class Guard:
    """Carries out the policies of passed limits.

    ``slot`` returns the newest sample of the slot.
    """

    def __init__(
        self,
        config_ref: ConfigRef,
        store: PipelineStore,
        registry: TableRegistry,
        staging: Staging,
        slot: Callable[[], SlotProgress],
        patience: Patience,
        resyncs: ResyncStage,
    ) -> None:
        self._config_ref = config_ref
        self._store = store
        self._registry = registry
        self._staging = staging
        self._slot = slot
        self._resyncs = resyncs
        self._next = 0.0
        self._passed: dict[GuardLimit, datetime] = {}
        self._patience = patience
        self._figures: dict[GuardMeasure, int] = {}
        self._actions = guard_actions(store)
        self._fruitless: set[GuardLimit] = set()
        """Passed limits for which no table can be parked, which is logged once."""

    @property
    def pauses_copies(self) -> bool:
        """True while no copy may begin. At the start that is so until the WAL that the slot keeps is known."""
        limits = self._config_ref.current.guard
        return pauses_copies(most_severe(self._passed)) or waits_for_sample(limits, self._figures)

    @property
    def free_bytes(self) -> int | None:
        """The free bytes of the staging area's volume as of the last comparison."""
        return self._figures.get(GuardMeasure.STAGING_FREE)

    def progress(self) -> GuardProgress:
        """Return the limits that are passed, and the last actions."""
        passed = tuple(
            PassedLimit(
                measure=limit.measure,
                policy=limit.policy,
                limit=limit.value,
                value=self._figures[limit.measure],
                since=at,
            )
            for limit, at in sorted(self._passed.items(), key=lambda item: item[1])
        )
        return GuardProgress(most_severe(self._passed) or "", self.pauses_copies, passed, self._actions)

    def check(self, now: float) -> None:
        """Compare the figures with the limits, at most every five seconds, and act. ``now`` is in seconds, monotonic.

        ReleaseSlot ends the pipeline with SlotLost ``slot_released``.
        """
        if now < self._next:
            return
        fresh = recent(self._slot(), datetime.now(UTC))
        known = figures(fresh, self._registry.backlog.staged_bytes, self._staging.free_bytes())
        self._figures |= known
        waits = waits_for_sample(self._config_ref.current.guard, self._figures)
        self._next = now if waits else now + _EVERY_S
        self._enter(in_force(self._config_ref.current.guard, known, self._passed.keys()))
        due = self._due(known, now)
        parked = [
            self._park(limit, known[limit.measure], fresh) for limit in due if limit.policy is GuardPolicy.PARK_SLOWEST
        ]
        # The slot has another chance once what was parked has released its WAL.
        if not any(parked):
            for limit in due:
                if limit.policy is GuardPolicy.RELEASE_SLOT:
                    self._release_slot(limit)
                    return

    def _enter(self, passed: frozenset[GuardLimit]) -> None:
        """Record and report which limits are passed now."""
        for limit in self._passed.keys() - passed:
            del self._passed[limit]
            self._fruitless.discard(limit)
            self._act(limit, f"{self._of(limit)}, so the policy ends", logging.INFO)
        for limit in passed - self._passed.keys():
            self._passed[limit] = datetime.now(UTC)
            self._act(limit, f"{self._of(limit)}, so the policy is in force")

    def _due(self, known: dict[GuardMeasure, int], now: float) -> list[GuardLimit]:
        """Return the limits to act on: passed for a while, and the figure does not recede."""
        limits, patience_s = self._config_ref.current.guard, self._config_ref.current.guard_patience_s
        for limit in limits:
            if limit.measure in known and limit not in self._passed:
                self._patience.forget(limit)
        return [
            limit
            for limit in self._passed
            if limit.policy in (GuardPolicy.PARK_SLOWEST, GuardPolicy.RELEASE_SLOT)
            and limit.measure in known
            and self._patience.is_due(limit, known[limit.measure], now, patience_s)
        ]

    def _park(self, limit: GuardLimit, figure: int, slot: SlotProgress | None) -> bool:
        """Park the tables that hold the most. Return False if parking tables would release too little."""
        chosen = slowest(limit, figure, slot, self._holdings(slot), durable=self._staging.durable)
        for holding in chosen:
            record = self._registry.tables[holding.table]
            error = self._parked(limit, record)
            if holding.shadow:
                self._resyncs.give_up(record, error)
            else:
                # First, so that a copy which ends now is not taken for complete.
                self._registry.phases.park_until_resync(record, error)
                record.copy.cancel()
        if chosen:
            self._fruitless.discard(limit)
            names = ", ".join(str(self._registry.tables[h.table].name) for h in chosen[:10])
            more = f" and {len(chosen) - 10} more" if len(chosen) > 10 else ""
            self._act(limit, f"{self._of(limit)}, so these tables are parked: {names}{more}")
        elif limit not in self._fruitless:
            self._fruitless.add(limit)
            self._act(limit, f"{self._of(limit)}, but parking tables would release nothing, or too little")
        return bool(chosen)

    def _holdings(self, slot: SlotProgress | None) -> list[Holding]:
        """Return what each table and each shadow copy holds, without those whose position is not known yet.

        The slot keeps WAL from the begin of the oldest transaction that the slowest table has not applied. A table that
        does not trail holds none, because an open transaction at the source may hold it as well.
        """
        backlog, staged = self._registry.backlog, self._registry.staged_lsn
        lowest, retained = backlog.min_applied_lsn(staged), 0 if slot is None else slot.retained_bytes or 0
        config, now = self._config_ref.current, time.time()
        trailing_s = 2 * config.freshness_s + config.guard_patience_s
        holdings: list[Holding] = []
        for record in self._registry.tables.values():
            for shadow in (False, True):
                pending = backlog.pending(record.id, shadow=shadow)
                oldest = pending.oldest_commit_ts_us
                if oldest is None or not (shadow or backlog.position_known(record.id)):
                    continue
                ahead = max(0, backlog.position(record.id, staged, shadow=shadow) - lowest)
                trails = now - oldest / 1e6 > trailing_s
                wal = max(0, retained - ahead) if trails else 0
                holdings.append(Holding(record.id, shadow, wal, pending.bytes))
        return holdings

    def _parked(self, limit: GuardLimit, record: TableRecord) -> NeedsOperator:
        return NeedsOperator(
            "parked_by_guard",
            f"the guard parked table {record.name}, because {self._of(limit)}, and removed its staged changes",
            hint=f"once there is room: {resync_command(record.name)}",
        )

    def _release_slot(self, limit: GuardLimit) -> None:
        slot, because = self._config_ref.current.slot.name, self._of(limit)
        _log.warning("guard: %s, so slot %s is dropped", because, slot)
        self._actions = record_release(self._store, limit, slot, because, datetime.now(UTC))
        message = f"the guard drops slot {slot}, because {because}"
        self._registry.fail(SlotLost("slot_released", message, hint=f"every table must be copied again: {RESYNC_ALL}"))

    def _of(self, limit: GuardLimit) -> str:
        return comparison(limit, self._figures[limit.measure])

    def _act(self, limit: GuardLimit, message: str, level: int = logging.WARNING) -> None:
        _log.log(level, "guard: %s", message)
        self._actions = record_action(self._store, GuardAction(limit.measure, limit.policy, datetime.now(UTC), message))
