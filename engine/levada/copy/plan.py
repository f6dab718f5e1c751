"""Plans the ranges of blocks of a copy. Each range is read by one task. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from levada.postgres.catalog import Leaf
from levada.values import QualifiedTable


@dataclass(frozen=True, slots=True)
class RangeLimits:
    """The sizes of ranges in bytes.

    A failed task reads its range again, and a destination writes a data file per range, so ranges have at most
    ``max_bytes``. It is not worth opening another connection for less than ``min_bytes``. A table of at most
    ``in_process_bytes`` is read in the process that runs the copy, see `levada.copy.in_process`. 0: no table is.
    """

    max_bytes: int = 128 << 20
    min_bytes: int = 8 << 20
    in_process_bytes: int = 1 << 20


RANGES: Final = RangeLimits()
"""The limits of the engine's copies."""


@dataclass(frozen=True, slots=True)
class BlockRange:
    """The blocks ``first <= block < end`` of a partition. If ``end`` is None, all blocks from ``first`` on.

    ``bytes`` is the estimated size of their rows, including TOAST.
    """

    leaf: QualifiedTable
    first: int
    end: int | None
    bytes: int


@dataclass(frozen=True, slots=True)
class PlannedLeaf:
    """The size of a partition when its ranges were planned."""

    name: QualifiedTable
    blocks: int
    bytes: int


@dataclass(frozen=True, slots=True)
class RangePlan:
    """The plan of a copy: its partitions, and the size in bytes at which they are split into ranges."""

    leaves: tuple[PlannedLeaf, ...]
    target_bytes: int

    @classmethod
    def of(cls, leaves: Sequence[Leaf], connections: int, limits: RangeLimits = RANGES) -> RangePlan:
        """Return the plan of partitions that are read by ``connections`` tasks at a time.

        There are at least as many ranges as ``connections``, unless they would be smaller than ``min_bytes``.
        """
        total = sum(leaf.bytes for leaf in leaves)
        target = min(limits.max_bytes, max(limits.min_bytes, -(-total // max(1, connections))))
        return cls(tuple(PlannedLeaf(leaf.name, leaf.blocks, leaf.bytes) for leaf in leaves), target)

    def ranges(self) -> tuple[BlockRange, ...]:
        """Return the ranges, largest first. Each block is in exactly one range.

        A partition has at most as many ranges as blocks. Outdated sizes lose no row: the first range of a partition
        begins with its first block, and the last one has no end. A partition without blocks has one range too. Plans
        that are equal have the same ranges in the same order.
        """
        ranges = [r for leaf in self.leaves for r in _cut(leaf, self.target_bytes)]
        return tuple(sorted(ranges, key=lambda r: -r.bytes))


def plan_ranges(leaves: Sequence[Leaf], connections: int, limits: RangeLimits = RANGES) -> tuple[BlockRange, ...]:
    """Return the ranges of the plan for these partitions, see `RangePlan`."""
    return RangePlan.of(leaves, connections, limits).ranges()


def _cut(leaf: PlannedLeaf, target: int) -> list[BlockRange]:
    count = max(1, min(leaf.blocks, -(-leaf.bytes // target)))
    bounds = [leaf.blocks * i // count for i in range(count)]
    return [
        BlockRange(leaf.name, first, end, leaf.bytes * ((end or leaf.blocks) - first) // max(1, leaf.blocks))
        for first, end in zip(bounds, [*bounds[1:], None], strict=True)
    ]
