"""The keys that differ, and the tasks that read a table for it."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa

from levada.destinations.iceberg.metadata import TableFacts
from levada.destinations.iceberg.spark_checksums import split_options
from levada.destinations.row_hashes import chunks_of
from levada.destinations.verification import DIGESTS
from levada.verify.differences import Kind
from levada.verify.rows import compare_rows


def digests(*rows: tuple[int, int]) -> pa.Table:
    """The rows of one side: the hash of the key and that of the values."""
    return pa.table([pa.array([row[i] for row in rows], pa.int64()) for i in (0, 1)], schema=DIGESTS)


def test_a_repair_writes_and_deletes_only_rows_that_differ() -> None:
    """Missing, changed and repeated rows are written, and changed, repeated and additional ones are deleted."""
    found = compare_rows(digests((1, 1), (2, 2), (3, 3), (4, 4)), digests((1, 1), (3, 9), (4, 4), (4, 4), (5, 5)))
    assert found.lost.to_pydict() == {"key_hash": [2, 3, 4], "digest": [2, 3, 4]}
    assert found.gone.to_pydict() == {"key_hash": [3, 4, 4, 5], "digest": [9, 4, 4, 5]}
    assert found.counts == {Kind.MISSING: 1, Kind.EXTRA: 1, Kind.CHANGED: 1, Kind.REPEATED: 1}
    some = {kind: found.of_kind(kind, 10) for kind in Kind}
    assert {kind: (s.lost["digest"].to_pylist(), s.gone["digest"].to_pylist()) for kind, s in some.items()} == {
        Kind.MISSING: ([2], []),
        Kind.EXTRA: ([], [5]),
        Kind.CHANGED: ([3], [9]),
        Kind.REPEATED: ([4], [4, 4]),
    }
    for empty in (compare_rows(digests(), digests()), compare_rows(digests((1, 1)), digests((1, 1)))):
        assert (empty.total, empty.lost.num_rows, empty.gone.num_rows) == (0, 0, 0)


def test_the_sums_of_all_rows_are_those_of_the_chunks() -> None:
    """So a side whose rows were read one by one need not be read again by chunk."""
    found = chunks_of(digests((1, 1 << 59), (17, 1 << 59), (2, 3)), 16).sort_by("chunk").to_pydict()
    assert found == {"chunk": [1, 2], "rows": [2, 1], "digest": [Decimal(1 << 60), Decimal(3)]}


def test_small_files_are_read_by_all_tasks() -> None:
    """A table of a few MiB has a million rows. Many small files are not a task each."""
    few = split_options(TableFacts(4, 0, 1_000_000, 0, 4 << 20), parallel=4)
    assert few == {"split-size": 1 << 20, "file-open-cost": 1 << 20}
    many = split_options(TableFacts(1000, 0, 1_000_000, 0, 4000 << 10), parallel=4)
    assert many == {"split-size": 1000 << 10, "file-open-cost": 4 << 10}
    assert split_options(TableFacts(0, 0, 0, 0, 0), parallel=4) == {}
