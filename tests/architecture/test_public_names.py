"""The names that users import are a promise: none comes or goes unnoticed.

After a change on purpose: ``python tests/architecture/test_public_names.py > tests/architecture/public_names.txt``.
"""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGES = (
    "levada",
    "levada.capture",
    "levada.destinations",
    "levada.errors",
    "levada.events",
    "levada.schema",
    "levada.status",
    "levada.stores",
    "levada.testing",
)
_ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).with_name("public_names.txt")


def public_names() -> list[str]:
    """Every name in the ``__all__`` of the public packages, with its package."""
    return [
        f"{package}.{name}"
        for package in PACKAGES
        for name in sorted(getattr(importlib.import_module(package), "__all__", ()))
    ]


def test_public_names_are_the_golden_ones() -> None:
    """The public packages export exactly the names in public_names.txt."""
    assert public_names() == GOLDEN.read_text().splitlines()


def test_every_public_name_is_there() -> None:
    """Each exported name can be imported, also those that are loaded on demand."""
    for name in public_names():
        package, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(package), attribute), name


EXAMPLES = (
    "custom-destination/custom_destination.py",
    "custom-store/custom_store.py",
    "change-capture/change_capture.py",
)


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_examples_use_public_names_only(example: str) -> None:
    """A destination and a store can be written from the names of the list, without a module behind them."""
    tree = ast.parse((_ROOT / "examples" / example).read_text("utf-8"))
    imported = [
        f"{node.module}.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.split(".")[0] == "levada"
        for alias in node.names
    ]
    plain = [a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names]
    assert imported
    assert set(imported) - set(public_names()) == set()
    assert [name for name in plain if name.split(".")[0] == "levada"] == []


def test_mypy_is_content_with_the_examples() -> None:
    """The public names have all types that a destination and a store need, under ``mypy --strict``."""
    command = [sys.executable, "-m", "mypy", "--strict", *(f"examples/{name}" for name in EXAMPLES)]
    checked = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


if __name__ == "__main__":
    print("\n".join(public_names()))
