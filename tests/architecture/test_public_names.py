"""The public names can be imported."""

from __future__ import annotations

import importlib

from tests.lint.public_names import GOLDEN
from tests.lint.tree import ROOT


def test_every_public_name_is_there() -> None:
    """Each exported name can be imported, also those that are loaded on demand."""
    for name in (ROOT / GOLDEN).read_text().splitlines():
        package, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(package), attribute), name
