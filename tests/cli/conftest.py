"""The manifests of the commands' tests."""

from __future__ import annotations

from tests.rigs.command_line import folder, manifest

__all__ = ["folder", "manifest"]
