"""The planner of copy ranges."""

from __future__ import annotations

import operator
import re

from hypothesis import given
from hypothesis import strategies as st

from levada.copy.plan import RANGES, BlockRange, plan_ranges
from levada.copy.range_reader import in_blocks
from levada.postgres.catalog import Leaf
from levada.values import QualifiedTable, TableId

BLOCK = 8192


def leaf_of(number: int, blocks: int, size: int) -> Leaf:
    """A leaf of that many blocks and bytes."""
    return Leaf(TableId(number), QualifiedTable("public", f"p{number}"), None, blocks, size)


@st.composite
def leaves(draw: st.DrawFn) -> list[Leaf]:
    """Leaves of all sizes, some of them empty, some with much TOAST."""
    sizes = draw(st.lists(st.tuples(st.integers(0, 200_000), st.floats(1, 50)), max_size=5))
    return [leaf_of(i, blocks, int(blocks * BLOCK * toast)) for i, (blocks, toast) in enumerate(sizes)]


def of_leaf(plan: tuple[BlockRange, ...], leaf: Leaf) -> list[BlockRange]:
    """The ranges of one leaf, in the order of their blocks."""
    return sorted((r for r in plan if r.leaf == leaf.name), key=lambda r: r.first)


@given(leaves(), st.integers(1, 16))
def test_ranges_are_disjoint_and_cover_every_block(tables: list[Leaf], connections: int) -> None:
    """Every block of a leaf is in exactly one range, also those beyond the size that was read, be it 0."""
    plan = plan_ranges(tables, connections)
    for leaf in tables:
        ranges = of_leaf(plan, leaf)
        assert ranges[0].first == 0
        assert ranges[-1].end is None
        assert [r.end for r in ranges[:-1]] == [r.first for r in ranges[1:]]
        assert all(r.end is None or r.first < r.end for r in ranges)


@given(leaves(), st.integers(1, 16))
def test_sizes(tables: list[Leaf], connections: int) -> None:
    """Ranges come biggest first, none far above the maximum, of a leaf never more than it has blocks."""
    plan = plan_ranges(tables, connections)
    assert [r.bytes for r in plan] == sorted((r.bytes for r in plan), reverse=True)
    for leaf in tables:
        ranges = of_leaf(plan, leaf)
        assert len(ranges) <= max(1, leaf.blocks)
        block = -(-leaf.bytes // max(1, leaf.blocks))
        assert all(r.bytes <= RANGES.max_bytes + block for r in ranges)


@given(st.integers(1, 100_000), st.integers(1, 16))
def test_every_connection_has_work_where_it_pays(blocks: int, connections: int) -> None:
    """A table has a range for each connection, unless the ranges would be too small to be worth it."""
    plan = plan_ranges([leaf_of(1, blocks, blocks * BLOCK)], connections)
    assert len(plan) >= min(connections, blocks * BLOCK // RANGES.min_bytes)


def test_toast_counts() -> None:
    """A table whose bulk is TOASTed is cut by what it holds, not by its main storage."""
    plan = plan_ranges([leaf_of(1, 1000, 10 * RANGES.max_bytes)], 1)
    assert len(plan) == 10


def test_a_range_has_every_row_of_its_blocks() -> None:
    """The rows of a block are numbered from 1."""
    compare = {">=": operator.ge, ">": operator.gt, "<": operator.lt, "<=": operator.le}
    leaf = QualifiedTable("public", "orders")
    rows = [(block, number) for block in range(8) for number in range(1, 4)]

    def read(first: int, end: int | None) -> list[tuple[int, int]]:
        parts = [
            re.fullmatch(r"ctid (\S+) '\((\d+),(\d+)\)'::tid", c) for c in in_blocks(BlockRange(leaf, first, end, 1))
        ]
        bounds = [(compare[p[1]], (int(p[2]), int(p[3]))) for p in parts if p is not None]
        assert len(bounds) == len(parts)
        return [row for row in rows if all(holds(row, bound) for holds, bound in bounds)]

    assert read(0, None) == rows
    assert read(3, 5) == [row for row in rows if row[0] in (3, 4)]
    assert read(5, None) == [row for row in rows if row[0] >= 5]
