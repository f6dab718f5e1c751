"""A measured curve, and the definition of one that can be measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Points = dict[str, list[tuple[float, float]]]
"""The measured (x, y) by the name of the series."""


@dataclass(frozen=True, slots=True)
class Definition:
    """A curve that can be measured. ``work`` says what the exponent should be at most, and why."""

    name: str
    title: str
    x: str
    y: str
    quick: tuple[int, ...]
    full: tuple[int, ...]
    most: float
    run: Callable[[Sequence[int], Path], Points]


@dataclass(frozen=True, slots=True)
class Curve:
    """The points of a curve."""

    definition: Definition
    points: Points

    def exponents(self) -> dict[str, float]:
        """Return the exponent of each series with at least two points."""
        return {name: exponent(points) for name, points in self.points.items() if len(points) > 1}

    def document(self) -> dict[str, Any]:
        """Return the curve as plain values for JSON."""
        d = self.definition
        return {
            "name": d.name, "title": d.title, "x": d.x, "y": d.y, "exponents": self.exponents(), "points": self.points,
            "sizesNotRun": sorted(set(d.full) - {int(x) for points in self.points.values() for x, _ in points}),
        }  # fmt: skip


def exponent(points: Sequence[tuple[float, float]]) -> float:
    """Return the slope of the line through the logarithms, by least squares."""
    x, y = np.log(np.maximum(np.array(points, dtype=float).T, 1e-9))
    return round(float(np.polyfit(x, y, 1)[0]), 2)
