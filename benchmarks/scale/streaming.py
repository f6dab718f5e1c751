"""The whole engine, from the WAL to commits in Iceberg, under a steady stream to few and to many tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.freshness import measured, names
from benchmarks.scale.curve import Definition, Points

_RATE = 200
"""Changes a second, over all tables, in transactions of one change."""
_SECONDS = 180
_FRESHNESS_S = 30


def tables(sizes: Sequence[int], folder: Path) -> Points:
    points: Points = {"for a change": [], "for a commit": []}
    for size in sizes:
        found = measured(names(size), _RATE, 1, _SECONDS, _FRESHNESS_S)
        points["for a change"].append((size, found.usage.cpu * 1e3 / found.changes))
        points["for a commit"].append((size, found.usage.cpu * 1e3 / found.commits))
    return points


DEFINITIONS = (
    Definition("engine-tables", "The whole engine, by tables", "tables with 200 changes/s in all", "CPU ms",
               (1, 20, 200), (1, 20, 200, 1000), 1.0, tables),
)  # fmt: skip
