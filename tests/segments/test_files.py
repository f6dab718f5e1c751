"""The packed files of a manifest are the files that were packed."""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.segments.files import SegmentFile, SegmentFiles
from levada.values import Lsn, SnapshotId, TableId

ANY = st.integers(0, (1 << 64) - 1)
FEW = st.lists(
    st.builds(
        SegmentFile,
        path=st.sampled_from(["shop/a.pieces", "shop/b.parquet", "shop/ünïcode \u0000.parquet"]),
        offset=st.none() | st.integers(0, (1 << 63) - 1),
        table=st.integers(0, 5).map(TableId) | st.integers(0, (1 << 32) - 1).map(TableId),
        snapshot_id=ANY.map(SnapshotId),
        rows=st.integers(0, 1 << 50),
        bytes=st.integers(0, 1 << 50),
        first_lsn=ANY.map(Lsn),
        last_lsn=ANY.map(Lsn),
        checksums=st.lists(st.integers(0, (1 << 32) - 1), max_size=3).map(tuple),
    ),
    max_size=12,
).map(lambda files: sorted(files, key=lambda f: f.table))


RANGES = ((0, 5), (7, 9), (1 << 40, 1 << 41))


@given(FEW, st.none() | st.integers(0, 1 << 62), st.lists(st.integers(0, 3), min_size=12, max_size=12))
def test_files_are_read_as_they_were_packed(
    files: list[SegmentFile], commit_ts_us: int | None, counts: list[int]
) -> None:
    """In memory, in JSON and in a pickle, with their types, whatever the size of the numbers."""
    files = [
        replace(file, commit_ts_us=commit_ts_us, rolled_back=RANGES[:count])
        for file, count in zip(files, counts, strict=False)
    ]
    packed = SegmentFiles.of(files)
    for found in (
        packed,
        SegmentFiles.loads(json.loads(json.dumps(packed.dumps()))),
        pickle.loads(pickle.dumps(packed)),
    ):
        assert list(found) == files
        assert found == packed
        assert [type(v) for f in found for v in (f.table, f.snapshot_id, f.first_lsn)] == [
            TableId, SnapshotId, Lsn,
        ] * len(files)  # fmt: skip
        assert [found[i] for i in range(-len(files), 0)] == files
        assert found[1:3] == tuple(files[1:3])
        assert found.paths == tuple(dict.fromkeys(f.path for f in files))


@given(FEW, st.integers(0, 5).map(TableId) | st.integers(0, (1 << 32) - 1).map(TableId))
def test_the_files_of_a_table_are_found(files: list[SegmentFile], absent: TableId) -> None:
    """Those of each table, with the sums of their rows and bytes, and none for a table without files."""
    packed = SegmentFiles.of(files)
    for table in {absent, *(f.table for f in files)}:
        own = tuple(f for f in files if f.table == table)
        assert packed.of_table(table) == own
        assert packed.size(table) == (sum(f.rows for f in own), sum(f.bytes for f in own))
    assert packed.size() == (sum(f.rows for f in files), sum(f.bytes for f in files))
    assert packed.tables == {f.table for f in files}


def text(*numbers: int) -> str:
    """Numbers as a manifest has them."""
    return base64.b64encode(zlib.compress(b"".join(n.to_bytes(8, "little") for n in numbers))).decode()


@pytest.mark.parametrize(
    "raw",
    [
        None,
        [],
        {"paths": [], "count": 0},
        {"paths": [5], "count": 0, "packed": text()},
        {"paths": [], "count": 0, "packed": "no text"},
        {"paths": [], "count": 0, "packed": base64.b64encode(b"damaged").decode()},
        {"paths": [], "count": 0, "packed": base64.b64encode(zlib.compress(b"odd")).decode()},
        {"paths": ["a"], "count": -1, "packed": text()},
        {"paths": ["a"], "count": 1, "packed": text(0, 0, 7)},
        {"paths": ["a"], "count": 1, "packed": text(1, 0, 7, 0, 1, 1, 1, 1, 0)},
        {"paths": ["a"], "count": 1, "packed": text(0, 0, 7, 0, 1, 1, 1, 1, 2, 5)},
        {"paths": ["a"], "count": 1, "packed": text(0, 0, 7, 0, 1, 1, 1, 1, 0, 5)},
        *(
            {"paths": ["a"], "count": 1, "packed": text(0, 0, 7, 0, 1, 1, 1, 1, 0), "rolled_back": each}
            for each in (
                [],
                {"ranges": [[1, 2]], "counts": []},
                {"ranges": [[1, 2]], "counts": [2]},
                {"ranges": [[2, 1]], "counts": [1]},
            )
        ),
    ],
)
def test_other_values_are_refused(raw: Any) -> None:
    """A manifest of another form is never read in part."""
    with pytest.raises(ValueError, match=r"segment|packed|base64|element|ranges"):
        SegmentFiles.loads(raw)
