"""Decides whether another writer changed a table since Levada's last commit. Pure.

Each commit of Levada atomically records its watermark, snapshot and schema in the table property
``levada.last-commit``. Unlike a snapshot's summary, a property survives compaction and the expiry of snapshots. The
watermark in the property is valid under the following rule.

The current snapshot descends from the recorded one, or is it, and every snapshot between the two has the operation
``replace``. Iceberg's specification ("Snapshots") defines that operation as one that changes no rows: compaction, and
rewrites of manifests or of delete files. Such a table is intact.

- A descendant with another operation is a foreign write: an append, a delete, an overwrite, a cherry-picked snapshot, a
  branch that was moved to main. The table no longer holds what the source holds.
- A current snapshot that does not descend from the recorded one is a rollback, even if its own summary has a later
  watermark, because it may have been compacted since. A table that another writer replaced is in this case too.
- An expired parent breaks the chain. Then the missing snapshots are read from earlier versions of the table's metadata,
  which the metadata log lists. If these do not reach back to the recorded snapshot, a change of rows cannot be ruled
  out, and the table's history is lost.

A rollback is never mistaken for an intact table, because descent is never inferred from an age, a sequence number or a
row count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from levada.destinations.iceberg.metadata import Snapshot

KEEPS_ROWS: Final = "replace"


class Verdict(StrEnum):
    """The relation of a table's current state to Levada's last commit."""

    INTACT = "intact"
    FOREIGN_WRITE = "foreign write"
    ROLLED_BACK = "rolled back"
    HISTORY_LOST = "history lost"


@dataclass(frozen=True, slots=True)
class Lineage:
    """A verdict, and the known snapshots since Levada's last commit, newest first."""

    verdict: Verdict
    since: tuple[Snapshot, ...] = ()

    @property
    def foreign(self) -> Snapshot | None:
        """The oldest snapshot that may have changed rows, or None."""
        return next((s for s in reversed(self.since) if s.operation != KEEPS_ROWS), None)


def judge(recorded: int, current: int | None, versions: Iterable[Mapping[int, Snapshot]]) -> Lineage:
    """Return the relation of the current snapshot to the recorded one.

    ``versions`` yields the snapshots by ID for each version of the metadata, newest first. It is read only as far as
    necessary.
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
    """Follow the parents of ``current``. Return None if one of them is unknown."""
    since: list[Snapshot] = []
    at: int | None = current
    while at != recorded:
        if at is None or len(since) > len(known):
            return Lineage(Verdict.ROLLED_BACK)
        if at not in known:
            return None
        since.append(known[at])
        at = known[at].parent
    found = Lineage(Verdict.INTACT, tuple(since))
    return found if found.foreign is None else Lineage(Verdict.FOREIGN_WRITE, tuple(since))
