"""An installed package of another author with a destination."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest


def install_package(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    module: str,
    attribute: str,
    code: str,
    group: str = "levada.destinations",
) -> None:
    """Install package ``their-package``, whose entry point ``theirs`` is this attribute of a module with this code."""
    (folder / f"{module}.py").write_text(code)
    info = folder / "their_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\ntheirs = {module}:{attribute}\n")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, module, raising=False)
