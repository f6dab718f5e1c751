"""The rows that differ, found by the hashes of their keys and values alone. Pure.

A repair writes these rows of the source again, and deletes those of the destination. No Python object is made for a
row, and the hashes of a million rows have 32 MB.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from levada.destinations.verification import DIGEST, DIGESTS, KEY_HASH
from levada.verify.differences import Kind

_Hashes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RowDifferences:
    """The rows of both sides whose keys differ, in the columns of their `digests`, and the number of keys by kind.

    ``lost`` are the source's and have to be written. ``gone`` are the destination's and have to go.
    """

    lost: pa.Table = field(default_factory=DIGESTS.empty_table)
    gone: pa.Table = field(default_factory=DIGESTS.empty_table)
    counts: dict[Kind, int] = field(default_factory=dict)
    kept: int = 0
    """The number of keys that only the destination has, and keeps."""

    @property
    def total(self) -> int:
        """The number of keys that differ."""
        return sum(self.counts.values())

    def of_kind(self, kind: Kind, most: int) -> RowDifferences:
        """Return the rows of some keys of one kind."""
        there, here = _column(self.lost, KEY_HASH), _column(self.gone, KEY_HASH)
        if kind is Kind.MISSING:
            missing = self.lost.filter(pa.array(~np.isin(there, here)))
            return RowDifferences(missing.slice(0, most), self.gone.slice(0, 0))
        if kind is Kind.EXTRA:
            extra = self.gone.filter(pa.array(~np.isin(here, there)))
            return RowDifferences(self.lost.slice(0, 0), extra.slice(0, most))
        keys, times = np.unique(here[np.isin(here, there)], return_counts=True)
        wanted = keys[(times > 1) == (kind is Kind.REPEATED)][:most]
        lost, gone = (pa.array(np.isin(side, wanted)) for side in (there, here))
        return RowDifferences(self.lost.filter(lost), self.gone.filter(gone))


def compare_rows(source: pa.Table, lake: pa.Table, *, keeps: bool = False) -> RowDifferences:
    """Return what differs between the `digests` of both sides. The source has each key once.

    If the destination ``keeps`` rows, those that only it has are no differences.
    """
    there, here = _column(source, KEY_HASH), _column(lake, KEY_HASH)
    keys, first, number, times = np.unique(here, return_index=True, return_inverse=True, return_counts=True)
    at = np.minimum(np.searchsorted(keys, there), max(0, len(keys) - 1))
    found = keys[at] == there if len(keys) else np.zeros(len(there), np.bool_)
    equal = found.copy()
    equal[found] = (times[at[found]] == 1) & (_column(lake, DIGEST)[first[at[found]]] == _column(source, DIGEST)[found])
    same = np.zeros(len(keys), np.bool_)
    same[at[equal]] = True
    known = np.zeros(len(keys), np.bool_)
    known[at[found]] = True
    gone = ~same[number]
    repeated = known & (times > 1)
    extra = int((~known).sum())
    if keeps:
        gone &= known[number]
    counts = {
        Kind.MISSING: int((~found).sum()),
        Kind.EXTRA: 0 if keeps else extra,
        Kind.CHANGED: int((known & ~same & ~repeated).sum()),
        Kind.REPEATED: int(repeated.sum()),
    }
    lost = source.filter(pa.array(~equal))
    return RowDifferences(lost, lake.filter(pa.array(gone)), counts, extra if keeps else 0)


def rows_of_keys(rows: pa.Table, keys: pa.Table) -> pa.Table:
    """Return the ``rows`` of `digests` whose keys are among those of ``keys``."""
    return rows.filter(pa.array(np.isin(_column(rows, KEY_HASH), _column(keys, KEY_HASH))))


def rows_of_other_keys(rows: pa.Table, keys: pa.Table) -> pa.Table:
    """Return the ``rows`` of `digests` whose keys are not among those of ``keys``."""
    return rows.filter(pa.array(~np.isin(_column(rows, KEY_HASH), _column(keys, KEY_HASH))))


def _column(rows: pa.Table, name: str) -> Any:
    return rows[name].to_numpy()
