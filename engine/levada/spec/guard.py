"""The manifest's limits on what the pipeline may fill: the source's disk and the staging area."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Final

from pydantic.alias_generators import to_camel

from levada.spec.model import Change, Model, Rule, StrictInt, setting
from levada.spec.quantity import Bytes

_USUAL_WARNING: Final = 80
"""The default of retainedWalPercent.warn. It may be above another percentage, where only that one is given."""


class SizeLimits(Model):
    """Sizes at which a policy acts. Each policy includes the milder ones before it."""

    warn: Bytes | None = setting(Change.HOT, None)
    """The passed limit is reported: in the status, by a condition, an Event, a metric and the log. Unset: never."""
    pause_copies: Bytes | None = setting(Change.HOT, None)
    """No copy of a table begins. Running copies continue. Unset: never."""
    park_slowest: Bytes | None = setting(Change.HOT, None)
    """The tables that hold the most are parked until a resync, and their staged changes are removed. That happens 30
    seconds after the limit is passed, unless the figure recedes. Unset: never.
    """


class WalLimits(SizeLimits):
    """Sizes of retained WAL at which a policy acts. Each policy includes the milder ones before it."""

    release_slot: Bytes | None = setting(Change.HOT, None)
    """The slot is dropped before it fills the source's disk. That happens 30 seconds after the limit is passed, unless
    the figure recedes. Then every table must be copied again, as source.slot.onLost says. Unset: never.
    """


class WalPercentLimits(Model):
    """Percentages of the source's max_slot_wal_keep_size at which a policy acts, as in retainedWal. 0: never.

    Without that parameter, the source sets no limit, and no policy acts.
    """

    warn: StrictInt = setting(Change.HOT, _USUAL_WARNING, ge=0, le=100)
    """The passed limit is reported. 0: never."""
    pause_copies: StrictInt = setting(Change.HOT, 0, ge=0, le=100)
    """No copy of a table begins. 0: never."""
    park_slowest: StrictInt = setting(Change.HOT, 0, ge=0, le=100)
    """The tables that hold the most are parked until a resync. 0: never."""
    release_slot: StrictInt = setting(Change.HOT, 0, ge=0, le=100)
    """The slot is dropped. 0: never."""


_POLICIES: Final = ("warn", "pause_copies", "park_slowest", "release_slot")
"""The policies, the mildest first."""


def _in_order(measure: str, policies: tuple[str, ...], *, falls: bool = False) -> Iterator[Rule]:
    """Yield the rules that no limit of a measure comes before that of a milder policy. Unset limits are not compared.

    ``falls`` is True if a policy acts below its limit.
    """
    at = f"self.{to_camel(measure)}"
    for milder, stronger in combinations(policies, 2):
        one, other = (f"{at}.{to_camel(name)}" for name in (milder, stronger))
        compared = f"quantity(string({one})).compareTo(quantity(string({other})))"

        def holds(guard: Guard, milder: str = milder, stronger: str = stronger) -> bool:
            limits = getattr(guard, measure)
            first, then = getattr(limits, milder), getattr(limits, stronger)
            return first is None or then is None or (first >= then if falls else first <= then)

        yield Rule(
            f"must not be {'above' if falls else 'below'} {to_camel(milder)}, which is the milder policy",
            f"!has({one}) || !has({other}) || {compared} {'>=' if falls else '<='} 0",
            holds,
            field=f"{to_camel(measure)}.{to_camel(stronger)}",
        )


def _percentages_in_order() -> Iterator[Rule]:
    """Yield the same for percentages, of which 0 is unset."""
    at = "self.retainedWalPercent"
    for milder, stronger in combinations(_POLICIES, 2):
        one, other = (f"{at}.{to_camel(name)}" for name in (milder, stronger))

        def holds(guard: Guard, milder: str = milder, stronger: str = stronger) -> bool:
            limits = guard.retained_wal_percent
            first, then = getattr(limits, milder), getattr(limits, stronger)
            return not then or first <= then or (milder == "warn" and first == _USUAL_WARNING)

        usual = f" || {one} == {_USUAL_WARNING}" if milder == "warn" else ""
        yield Rule(
            f"must not be below {to_camel(milder)}, which is the milder policy",
            f"{other} == 0 || {one} <= {other}{usual}",
            holds,
            field=f"retainedWalPercent.{to_camel(stronger)}",
        )


class Guard(Model):
    """Limits on what the pipeline may fill, and what is done when they are passed.

    A policy ends when the figure is a tenth better than its limit. The driver compares every five seconds while it
    runs.
    """

    rules = (
        *_in_order("retained_wal", _POLICIES),
        *_percentages_in_order(),
        *_in_order("staged", _POLICIES[:3]),
        *_in_order("staging_free", _POLICIES[:3], falls=True),
    )

    retained_wal: WalLimits = setting(Change.HOT, {})
    """WAL that the slot keeps on the source's disk. With durable staging no table holds WAL, so none is parked for it.
    """
    retained_wal_percent: WalPercentLimits = setting(Change.HOT, {})
    """The same as a percentage of the source's max_slot_wal_keep_size, at which the source invalidates the slot."""
    staged: SizeLimits = setting(Change.HOT, {})
    """Staged changes."""
    staging_free: SizeLimits = setting(Change.HOT, {})
    """Free space of the volume of the staging area. A policy acts below its limit. Ignored for an object store."""
