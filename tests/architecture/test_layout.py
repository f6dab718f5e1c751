"""The layout of the tree, and the imports that are allowed between its packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("folder", ["engine", "operator"])
def test_source_roots_are_no_packages(folder: str) -> None:
    """`operator/` with an ``__init__.py`` would shadow the standard library's module of that name."""
    assert not (ROOT / folder / "__init__.py").exists()


def test_import_contracts_hold() -> None:
    """Every contract of .importlinter holds."""
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports")], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_nothing_names_this_machine() -> None:
    """No file of the repository has the path of a checkout or of a home directory."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    private = (f"{ROOT}/".encode(), f"{Path.home()}/.".encode())
    # The Dockerfile's paths are the image's.
    files = [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file() and name != "Dockerfile"]
    assert [f for f in files if any(p in f.read_bytes() for p in private)] == []
