"""Each test has a pipeline into Iceberg tables of its own."""

from __future__ import annotations

from tests.rigs.verified_shop import shop

__all__ = ["shop"]
