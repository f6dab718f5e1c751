"""The manifests and engines of the commands' tests."""

from __future__ import annotations

from tests.rigs.command_line import folder, manifest
from tests.rigs.engine import engine

__all__ = ["engine", "folder", "manifest"]
