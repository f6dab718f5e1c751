"""The record of an interrupted copy: which ranges are finished, and in which snapshot each was read. Pure.

Why ranges of several snapshots can become one state of the table
-----------------------------------------------------------------

Let S be the snapshot of the first finished range, and T that of the last attempt. Take any key.

- No row with the key changed between S and T. Then its row, if there is one, has the same place (``ctid``) in all
  snapshots from S to T, because only a change or a rewrite of the table moves a row. Exactly one range covers that
  place, so the row was read exactly once, and as it is at T. If there is no row, no range has one.
- A row with the key changed. The stream has that change, with a commit LSN from S on and below T, under this key. The
  rows that the ranges have with the key may be outdated, missing or double. They are all deleted, and the row with the
  key is read again in the snapshot T.

So the result is the state of the table at T, and the copy is consistent at T as any other copy. A change of the key
itself is a change of both keys. A row whose filter of the publication begins or ceases to match is in the stream as an
insert or a delete.

This needs more than the ranges. The stream must have all changes: the publication, the row filter and the table's
membership are the same without a gap. Nothing else may move rows: the files of all partitions are the same, so there
was no TRUNCATE, VACUUM FULL, CLUSTER, ATTACH or DETACH. The columns, types and key are the same. The server's history
is the same. `KeptCopy.basis` is a digest of all that, including the versions of the catalog's rows, so that a change
that was undone counts too. Another basis means that the copy begins again. Blocks that were added after the plan
are in the last range of their partition, which has no end. If that range was finished before, their rows are changes.

The proof is the same for a copy that replaces a table, because that copy is in files of its own until one commit.
Changes may be applied to the table meanwhile: a shadow copy keeps staged changes of its own. Once all its ranges and
the changed rows are read, batches are applied to it, and the record ends.

As a check, the rows that exist at T according to the stream must be the rows that are found when they are read again.
Otherwise the copy begins again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Self

from levada.copy.plan import BlockRange, PlannedLeaf, RangePlan
from levada.values import Lsn, QualifiedTable


@dataclass(frozen=True, slots=True)
class KeptCopy:
    """The finished ranges of a copy that has not ended.

    ``basis`` is a digest of everything that must not change until the copy is complete. ``place`` is that of the
    results, see `levada.copy.rows.RangeKeeper`. ``since`` is the LSN from which on the stream's changes are kept. It is
    not above any snapshot. ``finished`` maps the LSN of each snapshot to the indices of its ranges in ``plan``.
    """

    basis: str
    place: str
    since: Lsn
    plan: RangePlan
    finished: Mapping[Lsn, frozenset[int]]

    @property
    def ranges(self) -> frozenset[int]:
        """The indices of all finished ranges."""
        return frozenset().union(*self.finished.values())

    @property
    def first_lsn(self) -> Lsn | None:
        """The LSN of the first snapshot, None without a finished range."""
        return min(self.finished, default=None)

    def with_finished(self, lsn: Lsn, ranges: Iterable[int]) -> KeptCopy:
        """Return the record with more finished ranges of the snapshot at ``lsn``."""
        of_snapshot = self.finished.get(lsn, frozenset()).union(ranges)
        return replace(self, finished={**self.finished, lsn: of_snapshot} if of_snapshot else self.finished)

    def to_text(self) -> str:
        """Return the record as text for the store. It has a few bytes for each range, and no file."""
        return json.dumps(
            {
                "basis": self.basis,
                "place": self.place,
                "since": str(self.since),
                "targetBytes": self.plan.target_bytes,
                "leaves": [[leaf.name.schema, leaf.name.name, leaf.blocks, leaf.bytes] for leaf in self.plan.leaves],
                "ranges": ranges_digest(self.plan.ranges()),
                "finished": {str(lsn): _to_spans(found) for lsn, found in self.finished.items()},
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_text(cls, text: str) -> Self | None:
        """Parse the text that `to_text` returned. Return None if this version of Levada would plan other ranges."""
        data = json.loads(text)
        leaves = tuple(PlannedLeaf(QualifiedTable(s, n), blocks, size) for s, n, blocks, size in data["leaves"])
        plan = RangePlan(leaves, data["targetBytes"])
        if ranges_digest(plan.ranges()) != data["ranges"]:
            return None
        finished = {Lsn.parse(lsn): _from_spans(spans) for lsn, spans in data["finished"].items()}
        return cls(data["basis"], data["place"], Lsn.parse(data["since"]), plan, finished)


@dataclass(frozen=True, slots=True)
class Basis:
    """Everything that must not change until a copy is complete. Each part has values that JSON can represent."""

    server: tuple[object, ...]
    settings: tuple[object, ...]
    publication: tuple[object, ...]
    table: tuple[object, ...]

    def to_text(self) -> str:
        """Return the digests of the parts."""
        return ".".join(digest(*part) for part in (self.server, self.settings, self.publication, self.table))


_CHANGED: Final = (
    "the source was restarted or is another server",
    "settings of the copy changed",
    "the publication of the table changed",
    "the table was altered, rewritten or truncated",
)


def changed_part(before: str, now: str) -> str:
    """Return what changed between two texts of a `Basis`."""
    parts = list(zip(before.split("."), now.split("."), strict=False))
    if len(parts) != len(_CHANGED):
        return "another version of Levada began it"
    return next(what for what, (a, b) in zip(_CHANGED, parts, strict=True) if a != b)


def range_name(lsn: Lsn, index: int) -> str:
    """Return the name of the result of one range that was read in the snapshot at ``lsn``."""
    return f"{int(lsn):016x}-{index}"


def digest(*parts: object) -> str:
    """Return a digest of values that JSON can represent."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def ranges_digest(ranges: Iterable[BlockRange]) -> str:
    """Return a digest of ranges in their order."""
    return digest([[r.leaf.schema, r.leaf.name, r.first, r.end] for r in ranges])[:32]


def _to_spans(indices: Iterable[int]) -> str:
    """Return a set of indices as text such as ``0-17,19``."""
    spans: list[list[int]] = []
    for index in sorted(indices):
        if spans and spans[-1][1] == index - 1:
            spans[-1][1] = index
        else:
            spans.append([index, index])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)


def _from_spans(text: str) -> frozenset[int]:
    parts = (span.partition("-") for span in text.split(",") if span)
    return frozenset(i for a, _, b in parts for i in range(int(a), int(b or a) + 1))
