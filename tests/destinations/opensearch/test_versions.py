"""The versions of documents, which decide which of two writes OpenSearch keeps."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.destinations.opensearch.versions import BLOCK_ROWS_BITS, block_ends, copy_version, versions_of
from levada.errors import NeedsOperator
from levada.schema.changes import COMMIT_LSN, ORDINAL
from levada.values import Lsn

# The LSN of a record is a multiple of 8.
lsns = st.integers(0, 1 << 50).map(lambda n: n * 8)
places = st.tuples(lsns, st.integers(0, (1 << 26) - 1))


def versions(*changes: tuple[int, int]) -> list[int]:
    """Return the versions of changes, which are given by commit LSN and ordinal."""
    rows = pa.table({COMMIT_LSN: [lsn for lsn, _ in changes], ORDINAL: [ordinal for _, ordinal in changes]})
    return [int(version) for version in versions_of(rows, "t")]


@given(lsns, st.integers(0, (1 << 26) - 1))
def test_a_copied_document_gives_way_to_each_change_since_its_snapshot(snapshot: int, ordinal: int) -> None:
    """A change that commits at the snapshot's LSN is not in the copy, and one below it is."""
    snapshot += 8
    before, at, after = versions((snapshot - 8, ordinal), (snapshot, ordinal), (snapshot + 8, ordinal))
    assert before <= copy_version(Lsn(snapshot)) < at < after


@given(st.lists(places, min_size=1))
def test_later_changes_have_no_lower_versions(changes: list[tuple[int, int]]) -> None:
    """Changes of different transactions have different versions, so none of them hides another one."""
    found = versions(*sorted(changes))
    assert found == sorted(found)
    assert len(set(found)) >= len({lsn for lsn, _ in changes})


def test_a_block_is_whole() -> None:
    """Changes of one version are never divided, because a replay would write another state under that version."""
    block = 1 << BLOCK_ROWS_BITS
    rows = pa.table({COMMIT_LSN: [8, 8, 8, 16], ORDINAL: [0, block - 1, block, 0]})
    assert block_ends(versions_of(rows, "t")).tolist() == [2, 3, 4]


def test_a_transaction_that_no_version_holds_is_an_error() -> None:
    """The last block is left free for a version that OpenSearch has raised by one."""
    assert versions((8, (511 << BLOCK_ROWS_BITS) - 1))
    with pytest.raises(NeedsOperator) as refused:
        versions((8, 511 << BLOCK_ROWS_BITS))
    assert refused.value.code == "version_exhausted"
