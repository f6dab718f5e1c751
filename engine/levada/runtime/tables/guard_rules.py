"""The rules of the guard: which limits are passed, whether to act on one, and which tables to park. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Final

from levada.runtime.config import GuardLimit
from levada.status import GuardMeasure, GuardPolicy, SlotProgress
from levada.values import TableId, age_of

_MARGIN: Final = Fraction(1, 10)
"""The share of a limit by which a figure must be better before the policy ends. Without it, a policy would flap."""
_FRESH: Final = timedelta(seconds=30)
_POLICIES: Final = tuple(GuardPolicy)
_NAMES: Final = {
    GuardMeasure.RETAINED_WAL: "the WAL that the slot keeps",
    GuardMeasure.RETAINED_WAL_PERCENT: "the WAL that the slot keeps, of max_slot_wal_keep_size,",
    GuardMeasure.STAGED: "the size of the staged changes",
    GuardMeasure.STAGING_FREE: "the free space of the staging area",
}
_WAL: Final = (GuardMeasure.RETAINED_WAL, GuardMeasure.RETAINED_WAL_PERCENT)


@dataclass(frozen=True, slots=True)
class Holding:
    """The WAL and the changes that a table, or its shadow copy, keeps from being removed.

    ``wal`` is in bytes of WAL, at most as much as the slot keeps. ``staged`` is in bytes of changes.
    """

    table: TableId
    shadow: bool
    wal: int
    staged: int


def recent(slot: SlotProgress, now: datetime) -> SlotProgress | None:
    """Return the sample of the slot, None if it is no ground to park a table or to drop the slot, because it is old."""
    return slot if slot.sampled_at is not None and age_of(slot.sampled_at, now) < _FRESH else None


def figures(slot: SlotProgress | None, staged: int, free: int | None) -> dict[GuardMeasure, int]:
    """Return the known figures. ``slot`` is None without a recent sample, ``free`` None for an object store."""
    known = {GuardMeasure.STAGED: staged}
    if free is not None:
        known[GuardMeasure.STAGING_FREE] = free
    if slot is not None and slot.retained_bytes is not None:
        known[GuardMeasure.RETAINED_WAL] = slot.retained_bytes
        if slot.safe_wal_bytes is not None:
            known[GuardMeasure.RETAINED_WAL_PERCENT] = slot.retained_bytes * 100 // keep_size(slot)
    return known


def keep_size(slot: SlotProgress) -> int:
    """Return the bytes of WAL that the source keeps for the slot at most, at least 1."""
    return max(1, (slot.retained_bytes or 0) + max(0, slot.safe_wal_bytes or 0))


def in_force(
    limits: Iterable[GuardLimit], known: Mapping[GuardMeasure, int], before: Set[GuardLimit]
) -> frozenset[GuardLimit]:
    """Return the limits whose policies are in force. ``before`` are those that were in force at the last comparison.

    A limit without a known figure stays as it was.
    """
    return frozenset(
        limit
        for limit in limits
        if (limit in before if (figure := known.get(limit.measure)) is None else _applies(limit, figure, before))
    )


def _applies(limit: GuardLimit, figure: int, before: Set[GuardLimit]) -> bool:
    bound = relief(limit) if limit in before else limit.value
    return figure <= bound if limit.measure is GuardMeasure.STAGING_FREE else figure >= bound


def relief(limit: GuardLimit) -> int:
    """Return the figure beyond which a limit that was passed is no longer in force."""
    sign = 1 if limit.measure is GuardMeasure.STAGING_FREE else -1
    return int(limit.value * (1 + sign * _MARGIN))


def recedes(measure: GuardMeasure, before: int, now: int) -> bool:
    """Return True if a figure has become better."""
    return now > before if measure is GuardMeasure.STAGING_FREE else now < before


def most_severe(limits: Iterable[GuardLimit]) -> GuardPolicy | None:
    """Return the most severe policy of the limits, or None without any."""
    return max((limit.policy for limit in limits), key=_POLICIES.index, default=None)


def pauses_copies(policy: GuardPolicy | None) -> bool:
    """Return True if no copy may begin under the policy."""
    return policy is not None and policy is not GuardPolicy.WARN


def waits_for_sample(limits: Iterable[GuardLimit], known: Collection[GuardMeasure]) -> bool:
    """Return True if a limit of the WAL may pause copies, and the WAL that the slot keeps was never known.

    Without that, a copy would begin in the moment between a restart and the first sample of the slot.
    """
    return GuardMeasure.RETAINED_WAL not in known and any(
        limit.measure in _WAL and pauses_copies(limit.policy) for limit in limits
    )


def slowest(
    limit: GuardLimit, figure: int, slot: SlotProgress | None, holdings: Iterable[Holding], *, durable: bool
) -> tuple[Holding, ...]:
    """Return what to park so that the figure comes below the limit, those that hold the most first.

    With durable staging no table holds WAL. For free space none is parked if all staged changes are less
    than a tenth of what is missing.
    """
    if limit.measure in _WAL:
        return () if durable or slot is None else _that_hold_wal(limit, slot, holdings)
    excess, held = abs(figure - relief(limit)), tuple(holdings)
    if limit.measure is GuardMeasure.STAGING_FREE and sum(h.staged for h in held) < excess * _MARGIN:
        # Something else fills the volume. The staged changes would be lost, and the volume still be full.
        return ()
    return _that_hold_staged(excess, held)


def _that_hold_wal(limit: GuardLimit, slot: SlotProgress, holdings: Iterable[Holding]) -> tuple[Holding, ...]:
    wanted = relief(limit)
    if limit.measure is GuardMeasure.RETAINED_WAL_PERCENT:
        wanted = wanted * keep_size(slot) // 100
    return tuple(sorted((h for h in holdings if h.wal > wanted), key=lambda h: -h.wal))


def _that_hold_staged(excess: int, holdings: Iterable[Holding]) -> tuple[Holding, ...]:
    chosen: list[Holding] = []
    for holding in sorted(holdings, key=lambda h: -h.staged):
        if excess <= 0 or not holding.staged:
            break
        chosen.append(holding)
        excess -= holding.staged
    return tuple(chosen)


def comparison(limit: GuardLimit, figure: int) -> str:
    """Return a figure and the limit that it has passed, or passes no longer, in words."""
    now, bound = amount_text(limit.measure, figure), amount_text(limit.measure, limit.value)
    return f"{_NAMES[limit.measure]} is {now}, and the limit of {limit.policy} {bound}"


def amount_text(measure: GuardMeasure, figure: int) -> str:
    """Return a figure of the guard with its unit, such as ``58.6 KiB`` or ``80 %``."""
    if measure is GuardMeasure.RETAINED_WAL_PERCENT:
        return f"{figure} %"
    amount, unit = float(figure), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:,.0f} B" if unit == "B" else f"{amount:,.1f} {unit}"
