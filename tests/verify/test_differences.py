"""The keys that differ, and the tasks that read a table for it."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa

from levada.destinations.iceberg.fixed_table import split_options
from levada.destinations.iceberg.metadata import TableFacts
from levada.destinations.verification import Comparison
from levada.schema import Column, ColumnType, Kind
from levada.verify.differences import compare_keys

ID = Column(1, "id", ColumnType(Kind.INT4), "integer", 23)
COMPARISON = Comparison((ID,), (ID,), chunks=16)


def side(**rows: int) -> pa.Table:
    """The rows of one side: the hash of each key, and the checksum of its row."""
    found = [(int(key[1:]), f'["{key[1:]}"]', 1, Decimal(row), Decimal(row)) for key, row in rows.items()]
    return pa.table(list(zip(*found, strict=True)), schema=COMPARISON.rows_schema)


def test_a_repair_deletes_only_the_rows_that_the_destination_has() -> None:
    """So the rows of a lost file are written again without a look for their places."""
    found = compare_keys(COMPARISON, side(k1=1, k2=2, k3=3), side(k1=1, k3=4, k5=5), examples=10)
    assert found.hashes.to_pylist() == [2, 3, 5]
    assert found.stored.to_pylist() == [3, 5]


def test_small_files_are_read_by_all_tasks() -> None:
    """A table of a few MiB has a million rows. Many small files are not a task each."""
    few = split_options(TableFacts(4, 0, 1_000_000, 0, 4 << 20), parallel=4)
    assert few == {"split-size": 1 << 20, "file-open-cost": 1 << 20}
    many = split_options(TableFacts(1000, 0, 1_000_000, 0, 4000 << 10), parallel=4)
    assert many == {"split-size": 1000 << 10, "file-open-cost": 4 << 10}
    assert split_options(TableFacts(0, 0, 0, 0, 0), parallel=4) == {}
