"""The erasure of keys: the request of the engine, and the result of a destination.

An erasure removes the rows with some keys from the current state of a table and from each former one, so that no file
of the table has their values any more. It moves no watermark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from levada.errors import NeedsOperator
from levada.values import QualifiedTable


@dataclass(frozen=True, slots=True, eq=False)
class Erasure:
    """A request. ``keys`` has the key columns of the table's schema under their names, as the destination stores them.

    With ``dry_run`` nothing is changed. With ``cuts`` the table leaves the cuts that have the rows.
    """

    keys: pa.Table
    dry_run: bool = False
    cuts: bool = False


@dataclass(frozen=True, slots=True)
class Remaining:
    """A place that may still have values of the rows.

    ``until`` is the event that removes them there, and empty if Levada knows none.
    """

    where: str
    until: str = ""

    def to_json(self) -> dict[str, str]:
        """Return the place as plain values for JSON."""
        return {"where": self.where, "until": self.until}


@dataclass(frozen=True, slots=True)
class Erased:
    """The result: numbers of what was removed, or of what would be.

    ``rows`` are the rows of the current state. ``files`` are the files of the current state that were written again
    without them. ``states`` are former states of the table, such as snapshots. ``cuts`` has the names of the cuts that
    have the rows, which the table has left. ``unreferenced`` are files that belonged to no state.
    """

    rows: int = 0
    files: int = 0
    states: int = 0
    cuts: tuple[str, ...] = ()
    unreferenced: int = 0
    remaining: tuple[Remaining, ...] = ()

    def also(self, remaining: Sequence[Remaining]) -> Erased:
        """Return the result with more places."""
        return replace(self, remaining=(*self.remaining, *remaining))

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain values for JSON."""
        return {
            "rows": self.rows,
            "files": self.files,
            "states": self.states,
            "cuts": list(self.cuts),
            "unreferencedFiles": self.unreferenced,
            "remaining": [place.to_json() for place in self.remaining],
        }


def kept_by_cuts(table: QualifiedTable, cuts: Sequence[str]) -> NeedsOperator:
    """Return the error of an erasure that would need to change cuts."""
    return NeedsOperator(
        "erase_kept_by_cuts",
        f"cuts have rows of {table} with these keys, so nothing was removed: {', '.join(cuts)}",
        hint="erase with --cuts, so that the table leaves these cuts. To drop one of them:"
        f" levada cut MANIFEST {cuts[0]} --drop",
    )
