"""Decides which snapshots of a table are kept. Pure.

Each commit writes the list of all snapshots, so its length has a bound. All of the newest snapshots are kept. Older
ones are thinned out: of each interval the first snapshot is kept, and intervals grow with the age. An interval consists
of shorter ones, so what is kept for a greater age was kept before. The state of any moment within the limit can be
read, or one that is at most an interval older.

Each older snapshot that is kept has a tag, `tag_name`. A gap in the chain of parents hides the snapshots behind it from
Iceberg's walk along the chain. Up to version 1.9, Iceberg's expiry of snapshots then removes files that newer snapshots
need, unless the table has more references than its main branch (https://github.com/apache/iceberg/issues/13568).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from levada.destinations.iceberg.metadata import Reference, Snapshot, TableMetadata

LATE_S: Final = 3600
"""The seconds past the limit after which a snapshot no longer waits for others to expire with it."""
_MINUTE: Final = 60_000
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """The number of snapshots that are kept.

    The ``newest`` snapshots are all kept. At least ``together`` snapshots expire in one step, if none is late.
    ``intervals`` has the length of the intervals up to each age, and ``longest`` is that of older snapshots, all in
    milliseconds. An interval of length 0 keeps no snapshot.
    """

    newest: int = 240
    together: int = 60
    intervals: tuple[tuple[int, int], ...] = ((12 * _HOUR, 10 * _MINUTE), (7 * _DAY, _HOUR), (90 * _DAY, _DAY))
    longest: int = 30 * _DAY

    def interval(self, age_ms: int) -> int:
        """Return the length of the intervals of snapshots of this age, in milliseconds."""
        return next((width for until, width in self.intervals if age_ms < until), self.longest)

    @property
    def widths(self) -> tuple[int, ...]:
        """The lengths of all intervals."""
        return (*(width for _, width in self.intervals), self.longest)


RETENTION: Final = RetentionLimits()
"""The limits of the engine's maintenance."""


@dataclass(frozen=True, slots=True)
class Retention:
    """The IDs of the snapshots to expire, the tags to set with their snapshots, and the tags to remove."""

    expired: tuple[int, ...] = ()
    tagged: Mapping[str, int] = field(default_factory=dict)
    untagged: tuple[str, ...] = ()


def retention(
    metadata: TableMetadata, expire_after_s: float, now_ms: int, limits: RetentionLimits = RETENTION
) -> Retention:
    """Return the changes after which the table has only the snapshots to keep.

    The state at the moment ``expire_after_s`` ago is kept, and the snapshots since then. 0 is no limit. These are
    always kept: the current snapshot, those since Levada's last commit, those with a tag or branch of others, and those
    that were committed to another branch.
    """
    ours = {name: ref.snapshot for name, ref in metadata.refs.items() if _is_ours(name, ref, metadata)}
    always = {ref.snapshot for name, ref in metadata.refs.items() if name not in ours} | _unjudged(metadata)
    candidates = _candidates(metadata)
    newest = {s.id for s in candidates[-limits.newest :]}
    first = firsts(candidates, now_ms, limits)
    limit = now_ms - int(expire_after_s * 1000) if expire_after_s else None
    kept = always | {s.id for s in _since([s for s in candidates if s.id in newest | first], limit)}
    untagged = kept - newest - always - set(ours.values())
    return Retention(
        tuple(s.id for s in candidates if s.id not in kept),
        {tag_name(s): s.id for s in candidates if s.id in untagged and tag_name(s) not in metadata.refs},
        tuple(name for name, id_ in ours.items() if id_ not in kept),
    )


def is_expiry_due(
    metadata: TableMetadata, expire_after_s: float, now_ms: int, limits: RetentionLimits = RETENTION
) -> bool:
    """Return True if snapshots should expire now: many, or one that is past the limit by `LATE_S`.

    An expiry of any number reads the manifests of all snapshots that are kept.
    """
    expired = retention(metadata, expire_after_s, now_ms, limits).expired
    late = now_ms - int((expire_after_s + LATE_S) * 1000)
    return len(expired) >= limits.together or (
        expire_after_s > 0 and any(metadata.snapshots[s].timestamp_ms < late for s in expired)
    )


def firsts(candidates: Sequence[Snapshot], now_ms: int, limits: RetentionLimits) -> set[int]:
    """Return the IDs of the snapshots that are the first of an interval of the length for their age."""
    found: dict[tuple[int, int], int] = {}
    for width in filter(None, limits.widths):
        for snapshot in candidates:
            found.setdefault((width, snapshot.timestamp_ms // width), snapshot.id)
    widths = ((s, limits.interval(now_ms - s.timestamp_ms)) for s in candidates)
    return {s.id for s, width in widths if width and found[width, s.timestamp_ms // width] == s.id}


def tag_name(snapshot: Snapshot) -> str:
    """Return the name of Levada's tag for a snapshot. It has the time of its commit."""
    return f"levada-{datetime.fromtimestamp(snapshot.timestamp_ms // 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _is_ours(name: str, ref: Reference, metadata: TableMetadata) -> bool:
    found = metadata.snapshots.get(ref.snapshot)
    return found is not None and not ref.branch and name == tag_name(found)


def _unjudged(metadata: TableMetadata) -> set[int]:
    """Return the current snapshot and those since Levada's last commit, from which changes by others are detected."""
    recorded = metadata.last_commit
    ids = [s.id for s in metadata.history]
    if recorded is None or recorded.snapshot_id not in ids:
        return set(ids)
    return set(ids[: ids.index(recorded.snapshot_id) + 1])


def _candidates(metadata: TableMetadata) -> list[Snapshot]:
    """Return the snapshots that may expire, oldest first: all but those that were committed to another branch."""
    branched = {s.id for ref in metadata.refs.values() if ref.branch for s in _committed_to(ref, metadata)}
    return sorted((s for s in metadata.snapshots.values() if s.id not in branched), key=lambda s: s.timestamp_ms)


def _committed_to(branch: Reference, metadata: TableMetadata) -> Iterator[Snapshot]:
    """Yield the snapshots of a branch back to the one at which it left the main branch.

    The walk also ends at a commit of Levada. Then the main branch's chain has a gap before it.
    """
    main = {s.id for s in metadata.history}
    found = metadata.snapshots.get(branch.snapshot)
    while found is not None and found.id not in main and found.mark is None:
        yield found
        found = None if found.parent is None else metadata.snapshots.get(found.parent)


def _since(snapshots: Sequence[Snapshot], limit_ms: int | None) -> Sequence[Snapshot]:
    """Return the snapshots after the limit, and the last one before it, whose state was current then."""
    if limit_ms is None:
        return snapshots
    before = sum(1 for s in snapshots if s.timestamp_ms <= limit_ms)
    return snapshots[max(0, before - 1) :]
