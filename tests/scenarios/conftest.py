"""Each scenario has an engine of its own."""

from __future__ import annotations

from tests.rigs.engine import engine

__all__ = ["engine"]
