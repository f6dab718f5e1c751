"""The changes of a transaction that were rolled back to a savepoint after they had been staged.

Rows of a transaction in progress are staged with their ordinals in it. What is rolled back later stays in the files,
and its ordinals are in the manifest as ranges. So no file is written again. Readers leave these changes out, and number
the others as if those had never been there. Then they have the ordinals that they have in a stream without them. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from levada.schema.changes import ORDINAL

Ranges = tuple[tuple[int, int], ...]
"""Ranges of ordinals, in order. Each ends before the second number. No two touch each other."""


def parse_ranges(raw: Sequence[object]) -> Ranges:
    """Return ranges that were written as lists. Raise ValueError for anything else."""
    found: list[tuple[int, int]] = []
    for each in raw:
        match each:
            case [int(first), int(end)] if (found[-1][1] if found else -1) < first < end:
                found.append((first, end))
            case _:
                raise ValueError("not ranges of ordinals")
    return tuple(found)


def total(ranges: Ranges) -> int:
    """Return the number of changes in the ranges."""
    return sum(end - first for first, end in ranges)


def begun(ranges: Ranges, last: int) -> Ranges:
    """Return the ranges that begin at an ordinal up to ``last``."""
    return tuple(r for r in ranges if r[0] <= last)


def covered(ranges: Ranges, first: int, last: int) -> bool:
    """Return True if all ordinals from ``first`` to ``last``, inclusive, were rolled back."""
    return any(begin <= first and last < end for begin, end in ranges)


def renumbered(ranges: Ranges, ordinal: int) -> int | None:
    """Return the ordinal without the changes before that were rolled back, None if it was rolled back itself."""
    kept, numbers = _kept(ranges, np.array([ordinal]))
    return int(numbers[0]) if kept[0] else None


def remaining(rows: pa.RecordBatch, ranges: Ranges) -> pa.RecordBatch:
    """Return the rows that were not rolled back, with new ordinals. The rows have the column of ordinals."""
    at = rows.schema.get_field_index(ORDINAL)
    kept, numbers = _kept(ranges, rows.column(at).to_numpy())
    renewed = rows.set_column(at, rows.schema.field(at), pa.array(numbers))
    return renewed if kept.all() else renewed.filter(pa.array(kept))


def _kept(ranges: Ranges, ordinals: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.bool_], npt.NDArray[Any]]:
    """Return which changes count, and the new numbers of all."""
    first, end = np.array(ranges, np.int64).reshape(len(ranges), 2).T
    before = np.searchsorted(first, ordinals, side="right")
    gone = np.concatenate(([0], np.cumsum(end - first)))
    ends = np.concatenate(([-1], end))
    return ordinals >= ends[before], ordinals - gone[before]
