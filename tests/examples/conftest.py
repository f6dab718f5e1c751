"""Each test has what a reader of the examples has."""

from __future__ import annotations

from tests.rigs.example_shop import shop
from tests.rigs.http_service import service

__all__ = ["service", "shop"]
