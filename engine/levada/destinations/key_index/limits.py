"""Sizes from which the key index goes on to another form. No manifest sets them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class IndexLimits:
    """The sizes of a key index, in entries and lines.

    Runs are merged in blocks of at most ``block_rows`` of each. From ``in_memory_rows`` uncommitted entries on, they
    are written to a file instead of held in memory. The log of file numbers is rewritten if it has more lines than
    three times the number of files plus ``obsolete_lines``.
    """

    block_rows: int = 1 << 17
    in_memory_rows: int = 1 << 20
    obsolete_lines: int = 1000


LIMITS: Final = IndexLimits()
"""The limits of the destinations' indexes."""
