"""The rules of leader election by a Lease, without clocks and requests.

Two clocks are never compared. A candidate measures with its own monotonic clock how long it has seen a Lease unchanged,
as client-go does. The times in the Lease are for people.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from levada_operator.observe.objects import Body

_NONE: Final = ""
_MAX_WAIT: Final = 4
"""A candidate waits no longer than so many times the duration that it writes itself."""


@dataclass(frozen=True, slots=True)
class LeaseTimings:
    """The durations of an election, in seconds.

    ``lease_s`` is how long a candidate must see a Lease unchanged before it takes the Lease. ``renew_s`` is how long
    the leader may write after it has sent a renewal that succeeded. The difference is what a request may need to reach
    the API server, and what two clocks may differ in speed.
    """

    lease_s: int
    renew_s: float
    retry_s: float


def lease_timings(lease_s: int) -> LeaseTimings:
    """Return the durations for a Lease of ``lease_s`` seconds, in client-go's proportions. Raise ValueError below 1."""
    if lease_s < 1:
        raise ValueError("the Lease must last a second or longer")
    return LeaseTimings(lease_s, renew_s=lease_s * 2 / 3, retry_s=lease_s * 2 / 15)


@dataclass(frozen=True, slots=True)
class LeaseObservation:
    """A Lease as a candidate has read it, and since when it is unchanged by the candidate's monotonic clock."""

    version: str
    holder: str
    duration_s: float
    since: float


def observe_lease(before: LeaseObservation | None, lease: Body, now: float) -> LeaseObservation:
    """Return the observation of a Lease that was read at ``now``."""
    version = str(lease["metadata"].get("resourceVersion", ""))
    if before is not None and before.version == version:
        return before
    spec = lease.get("spec") or {}
    return LeaseObservation(
        version, spec.get("holderIdentity") or "", float(spec.get("leaseDurationSeconds") or 0), now
    )


def observe_missing_lease(before: LeaseObservation | None, now: float) -> LeaseObservation:
    """Return the observation of a missing Lease. A leader may still hold a deleted one, so a candidate waits."""
    if before is not None and before.version == _NONE:
        return before
    return LeaseObservation(_NONE, "an unknown holder", before.duration_s if before is not None else 0.0, now)


def may_take(seen: LeaseObservation, identity: str, timings: LeaseTimings, now: float) -> bool:
    """Return True if the candidate may write itself into the Lease.

    The duration that the holder wrote counts too: another version of the operator may have another one. It counts up to
    `_MAX_WAIT` times the own one, because anyone with the right to write the Lease can write any duration.
    """
    if seen.holder in ("", identity):
        return True
    return now - seen.since >= max(min(seen.duration_s, _MAX_WAIT * timings.lease_s), timings.lease_s)


def held_by(lease: Body, identity: str, timings: LeaseTimings, now: datetime) -> dict[str, Any]:
    """Return the Lease with that holder, acquired or renewed at ``now``."""
    spec: Mapping[str, Any] = lease.get("spec") or {}
    stamp = now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    taken = spec.get("holderIdentity") != identity
    return {
        **lease,
        "spec": {
            **spec,
            "holderIdentity": identity,
            "leaseDurationSeconds": timings.lease_s,
            "acquireTime": stamp if taken else spec.get("acquireTime", stamp),
            "renewTime": stamp,
            "leaseTransitions": int(spec.get("leaseTransitions") or 0) + taken,
        },
    }


def released(lease: Body, now: datetime) -> dict[str, Any]:
    """Return the Lease without a holder, so that the next candidate acquires it without waiting."""
    spec = {k: v for k, v in (lease.get("spec") or {}).items() if k not in ("holderIdentity", "acquireTime")}
    stamp = now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {**lease, "spec": {**spec, "leaseDurationSeconds": 1, "renewTime": stamp}}
