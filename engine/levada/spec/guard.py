"""The manifest's limits on what the pipeline may fill: the source's disk and the staging area."""

from __future__ import annotations

from levada.spec.model import Change, Model, StrictInt, setting
from levada.spec.quantity import Bytes


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

    warn: StrictInt = setting(Change.HOT, 80, ge=0, le=100)
    """The passed limit is reported. 0: never."""
    pause_copies: StrictInt = setting(Change.HOT, 0, ge=0, le=100)
    """No copy of a table begins. 0: never."""
    park_slowest: StrictInt = setting(Change.HOT, 0, ge=0, le=100)
    """The tables that hold the most are parked until a resync. 0: never."""
    release_slot: StrictInt = setting(Change.HOT, 0, ge=0, le=100)
    """The slot is dropped. 0: never."""


class Guard(Model):
    """Limits on what the pipeline may fill, and what is done when they are passed.

    A policy ends when the figure is a tenth better than its limit. The driver compares every five seconds while it
    runs.
    """

    retained_wal: WalLimits = setting(Change.HOT, {})
    """WAL that the slot keeps on the source's disk. With durable staging no table holds WAL, so none is parked for it.
    """
    retained_wal_percent: WalPercentLimits = setting(Change.HOT, {})
    """The same as a percentage of the source's max_slot_wal_keep_size, at which the source invalidates the slot."""
    staged: SizeLimits = setting(Change.HOT, {})
    """Staged changes."""
    staging_free: SizeLimits = setting(Change.HOT, {})
    """Free space of the volume of the staging area. A policy acts below its limit. Ignored for an object store."""
