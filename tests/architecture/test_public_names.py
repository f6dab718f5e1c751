"""The names that users import are a promise: none comes or goes unnoticed.

After a change on purpose: ``python tests/architecture/test_public_names.py > tests/architecture/public_names.txt``.
"""

from __future__ import annotations

import importlib
from pathlib import Path

PACKAGES = ("levada", "levada.capture", "levada.destinations", "levada.status", "levada.stores")
GOLDEN = Path(__file__).with_name("public_names.txt")


def public_names() -> list[str]:
    """Every name in the ``__all__`` of the public packages, with its package."""
    return [
        f"{package}.{name}"
        for package in PACKAGES
        for name in sorted(getattr(importlib.import_module(package), "__all__", ()))
    ]


def test_public_names_are_the_golden_ones() -> None:
    """What the public packages export is what public_names.txt says."""
    assert public_names() == GOLDEN.read_text().splitlines()


def test_every_public_name_is_there() -> None:
    """Each exported name can be imported, also those that are loaded on demand."""
    for name in public_names():
        package, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(package), attribute), name


if __name__ == "__main__":
    print("\n".join(public_names()))
