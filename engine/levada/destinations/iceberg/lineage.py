"""Decides whether a table is still as Levada left it, or was changed by another writer. Pure.

Every commit of Levada records itself in the table property ``levada.last-commit``, in the same atomic commit: the
watermark, the snapshot and the schema that it made. A property survives the expiry of snapshots and compaction, which
the stamp in a snapshot's summary does not. The watermark of the property counts under this rule.

The current snapshot descends from the recorded one, or is it, and every snapshot between the two has the operation
``replace``. Iceberg's specification ("Snapshots") defines that operation as one that changes no rows: compaction, and
rewrites of manifests or of delete files. Such a table is intact.

- A descendant with another operation is a foreign write: an append, a delete, an overwrite, a cherry-picked snapshot, a
  branch that was moved to main. The table no longer holds what the source holds.
- A current snapshot that does not descend from the recorded one is a rollback, whatever its own stamp says: it may have
  been compacted since. A table that was replaced by another writer ends here as well.
- A parent that was expired breaks the chain. Only a snapshot whose parent is recorded as the missing one proves
  anything, so the chain is completed from earlier versions of the table's metadata, which the metadata log names. If
  these do not reach back to the recorded snapshot, nothing proves that no row changed. The table's history is lost.

A rollback is never taken for an intact table: no case infers descent from an age, a sequence number or a row count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from levada.destinations.iceberg.metadata import Snapshot

KEEPS_ROWS: Final = "replace"


class Verdict(StrEnum):
    """The relation of a table's current state to the last commit of Levada."""

    INTACT = "intact"
    FOREIGN_WRITE = "foreign write"
    ROLLED_BACK = "rolled back"
    HISTORY_LOST = "history lost"


@dataclass(frozen=True, slots=True)
class Lineage:
    """A verdict, and the snapshots since the last commit of Levada, newest first, where they are known."""

    verdict: Verdict
    since: tuple[Snapshot, ...] = ()

    @property
    def foreign(self) -> Snapshot | None:
        """The oldest of the snapshots that may have changed rows."""
        return next((s for s in reversed(self.since) if s.operation != KEEPS_ROWS), None)


def judge(recorded: int, current: int | None, versions: Iterable[Mapping[int, Snapshot]]) -> Lineage:
    """Return how the current snapshot relates to the recorded one.

    ``versions`` has the snapshots by id of each version of the metadata, newest first. An earlier version is only asked
    for where a later one does not answer.
    """
    if current is None:
        return Lineage(Verdict.ROLLED_BACK)
    known: dict[int, Snapshot] = {}
    for version in versions:
        known |= version
        found = _walk(recorded, current, known)
        if found is not None:
            return found
    return Lineage(Verdict.HISTORY_LOST)


def _walk(recorded: int, current: int, known: Mapping[int, Snapshot]) -> Lineage | None:
    """Follow the parents; return None where one is not known."""
    since: list[Snapshot] = []
    place: int | None = current
    while place != recorded:
        if place is None or len(since) > len(known):
            return Lineage(Verdict.ROLLED_BACK)
        if place not in known:
            return None
        since.append(known[place])
        place = known[place].parent
    found = Lineage(Verdict.INTACT, tuple(since))
    return found if found.foreign is None else Lineage(Verdict.FOREIGN_WRITE, tuple(since))
