"""Each fault is tried against an engine of its own, as in the scenarios."""

from __future__ import annotations

from tests.rigs.engine import engine

__all__ = ["engine"]
