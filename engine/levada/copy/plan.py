"""Which ranges of blocks a copy reads, each as one task. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from levada.postgres.catalog import Leaf
from levada.values import QualifiedTable

MAX_RANGE_BYTES: Final = 128 << 20
"""The largest range: what is done again when a task fails, and what one data file of a destination comes from."""
MIN_RANGE_BYTES: Final = 8 << 20
"""The smallest range that a second connection is worth opening for."""


@dataclass(frozen=True, slots=True)
class BlockRange:
    """The blocks ``first <= block < end`` of a leaf; ``end`` None: all that follow.

    ``bytes`` is about what they hold, TOAST included.
    """

    leaf: QualifiedTable
    first: int
    end: int | None
    bytes: int


def plan_ranges(leaves: Sequence[Leaf], connections: int) -> tuple[BlockRange, ...]:
    """Cut the leaves into ranges of at most `MAX_RANGE_BYTES`, biggest first; together they are every block once.

    There are at least as many as ``connections``, unless that makes them smaller than `MIN_RANGE_BYTES`; of a leaf
    never more than it has blocks. Sizes may be out of date and nothing is lost: the first range of a leaf begins with
    its first block, the last has no end, and a leaf without blocks has one range all the same.
    """
    total = sum(leaf.bytes for leaf in leaves)
    target = min(MAX_RANGE_BYTES, max(MIN_RANGE_BYTES, -(-total // max(1, connections))))
    ranges = [r for leaf in leaves for r in _cut(leaf, target)]
    return tuple(sorted(ranges, key=lambda r: -r.bytes))


def _cut(leaf: Leaf, target: int) -> list[BlockRange]:
    count = max(1, min(leaf.blocks, -(-leaf.bytes // target)))
    bounds = [leaf.blocks * i // count for i in range(count)]
    return [
        BlockRange(leaf.name, first, end, leaf.bytes * ((end or leaf.blocks) - first) // max(1, leaf.blocks))
        for first, end in zip(bounds, [*bounds[1:], None], strict=True)
    ]
