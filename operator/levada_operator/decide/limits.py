"""The condition WithinLimits: by the driver's report, or by a sample of the slot while no driver runs."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic.alias_generators import to_snake

from levada.spec import Manifests
from levada.spec.guard import Guard
from levada.status import GuardMeasure, GuardPolicy, PassedLimit, SlotProgress
from levada_operator.decide.conditions import Condition, stored_condition
from levada_operator.decide.rounding import size_text
from levada_operator.decide.slot import SlotSample
from levada_operator.observe.observed import Observed

_OF = "WithinLimits"
_STAGING = f"guard.{GuardMeasure.STAGED}"
_POLICIES = tuple(GuardPolicy)


def within_limits(observed: Observed, sample: SlotSample | None, manifests: Manifests | None) -> Condition:
    """Return WithinLimits: True if no limit of spec.guard is passed. Its reason is the most severe policy in force.

    While no driver runs, a Job samples the slot, and the WAL that it keeps is compared. Without a sample, also of a
    driver that is starting, return the stored condition.
    """
    if manifests is not None and sample is not None and sample.by_job and sample.report is not None:
        return _of_sample(observed, sample.report, manifests)
    if observed.progress is None:
        return stored_condition(_OF, observed.pipeline.status)
    guard = observed.progress.guard
    if not guard.policy:
        if observed.progress.slot.sampled_at is None:
            # The driver is starting, and has compared nothing yet.
            return stored_condition(_OF, observed.pipeline.status)
        return Condition(_OF, True, "NoLimitPassed")
    passed = (f"{_path(p.measure, p.policy)} ({limit_text(p)})" for p in guard.passed)
    acted = "; " + guard.actions[-1].message if guard.actions else ""
    reason = guard.policy if guard.policy in set(GuardPolicy) else "Unknown"
    return Condition(_OF, False, reason, f"passed: {', '.join(sorted(passed))}{acted}")


def limit_text(passed: PassedLimit) -> str:
    """Return a limit of the guard with its unit."""
    return _text(passed.measure, passed.limit)


def _of_sample(observed: Observed, slot: SlotProgress, manifests: Manifests) -> Condition:
    passed = list(_passed(manifests.pipeline.spec.guard, slot))
    if not passed:
        # A Job cannot see the staging area, whose figures stay as they are while no driver runs.
        stored = stored_condition(_OF, observed.pipeline.status)
        return stored if _STAGING in stored.message else Condition(_OF, True, "NoLimitPassed")
    worst = max((policy for _, policy, _ in passed), key=_POLICIES.index)
    texts = sorted(f"{_path(measure, policy)} ({_text(measure, limit)})" for measure, policy, limit in passed)
    drop = f"SELECT pg_drop_replication_slot('{manifests.pipeline.slot_name}')"
    return Condition(
        _OF,
        False,
        worst,
        f"passed: {', '.join(texts)}; no driver runs, so no policy acts: let it run, or drop the slot, after which"
        f" every table is copied again: {drop}",
    )


def _passed(guard: Guard, slot: SlotProgress) -> Iterator[tuple[GuardMeasure, GuardPolicy, int]]:
    known: dict[GuardMeasure, int] = {}
    if slot.retained_bytes is not None:
        known[GuardMeasure.RETAINED_WAL] = slot.retained_bytes
        if slot.safe_wal_bytes is not None:
            kept = max(1, slot.retained_bytes + max(0, slot.safe_wal_bytes))
            known[GuardMeasure.RETAINED_WAL_PERCENT] = slot.retained_bytes * 100 // kept
    for measure, figure in known.items():
        for policy in _POLICIES:
            limit = getattr(getattr(guard, to_snake(measure)), to_snake(policy))
            if limit and figure >= limit:
                yield measure, policy, limit


def _path(measure: str, policy: str) -> str:
    return f"guard.{measure}.{policy[:1].lower()}{policy[1:]}"


def _text(measure: str, limit: int) -> str:
    return f"{limit}%" if measure == GuardMeasure.RETAINED_WAL_PERCENT else size_text(limit)
