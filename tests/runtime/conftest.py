"""A pipeline over a test"s database, in the test"s process."""

from __future__ import annotations

from tests.rigs.pipeline import rig

__all__ = ["rig"]
