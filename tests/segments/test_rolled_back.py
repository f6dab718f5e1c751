"""Changes that were rolled back after they had been staged are left out, and do not count in the ordinals."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from levada.schema.changes import ORDINAL
from levada.segments.rolled_back import begun, covered, parse_ranges, remaining, renumbered, total

RANGES = ((2, 4), (7, 8), (9, 20))


def batch(ordinals: list[int]) -> pa.RecordBatch:
    """Rows whose values are their ordinals."""
    return pa.record_batch({"v": pa.array(ordinals), ORDINAL: pa.array(ordinals, pa.int64())})


def test_the_remaining_rows_have_the_numbers_of_a_stream_without_the_others() -> None:
    """So each one is as when the transaction is received after its COMMIT."""
    left = remaining(batch([0, 1, 2, 3, 4, 6, 7, 8, 9, 19, 20, 25]), RANGES)
    assert left.to_pydict() == {"v": [0, 1, 4, 6, 8, 20, 25], ORDINAL: [0, 1, 2, 4, 5, 6, 11]}
    assert [renumbered(RANGES, n) for n in (1, 2, 3, 4, 8, 20)] == [1, None, None, 2, 5, 6]
    assert total(RANGES) == 14


@pytest.mark.parametrize("seed", range(20))
def test_random_ranges(seed: int) -> None:
    """The numbers are those of the remaining rows of all tables, in their order."""
    r = random.Random(seed)
    ends = sorted(r.sample(range(200), 12))
    ranges = tuple(zip(ends[::2], ends[1::2], strict=True))
    gone = {n for first, end in ranges for n in range(first, end)}
    numbers = {n: i for i, n in enumerate(n for n in range(220) if n not in gone)}
    some = sorted(r.sample(range(220), 60))
    left = remaining(batch(some), ranges)
    assert left.column(1).to_pylist() == [numbers[n] for n in some if n in numbers]
    assert [renumbered(ranges, n) for n in some] == [numbers.get(n) for n in some]
    assert covered(ranges, some[0], some[1]) == gone.issuperset(range(some[0], some[1] + 1))
    assert begun(ranges, some[30]) == tuple(x for x in ranges if x[0] <= some[30])


@pytest.mark.parametrize("raw", [[[1]], [[2, 2]], [[3, 1]], [[1, 3], [3, 4]], [[1, "2"]], ["12"], [[-1, 2]]])
def test_what_is_no_list_of_ranges_is_refused(raw: list[object]) -> None:
    """A manifest cannot make a reader leave out other rows."""
    with pytest.raises(ValueError, match="not ranges"):
        parse_ranges(raw)
