"""The page docs/guarantees.md from docs/guarantees: ``python -m tests.lint.guarantees_page > docs/guarantees.md``."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tests.lint.tree import ROOT, Tree

FOLDER: Final = "docs/guarantees"
SUMMARY: Final = f"{FOLDER}/summary.toml"
_HEAD: Final = """# Guarantees at the edges

<!-- Written by `python -m tests.lint.guarantees_page` from docs/guarantees. `make lint` compares it. -->

A table that may be wrong is never `Ready`. Levada checks the identity of everything that it depends on: the source, the
slot, the publication, the lake table, the staged files. On a mismatch the tables concerned are copied again by policy,
or parked with an [error code](errors.md) and a hint.

In ten lines:

"""
_FOOT: Final = """
Each row below is one promise, with its limits, and the tests that show it.
"""


@dataclass(frozen=True, slots=True)
class Promise:
    """A promise in one sentence, its limits, and the tests that show it, such as ``tests/a.py::test_b``."""

    text: str
    limits: str
    tests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Area:
    """The promises about one thing. ``path`` is the file that has them."""

    path: str
    title: str
    about: str
    promises: tuple[Promise, ...]

    @property
    def link(self) -> str:
        """The link to the area's heading."""
        anchor = re.sub(r"[^\w -]", "", self.title.lower()).replace(" ", "-")
        return f"[{self.title}](#{anchor})"


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the summary, and its areas."""

    text: str
    areas: tuple[Area, ...]


def lines_of(tree: Tree) -> list[Line]:
    """Return the lines of the summary, with every area once."""
    lines = tomllib.loads(tree.text(SUMMARY))["line"]
    return [Line(line["text"], tuple(_area(tree, f"{FOLDER}/{name}.toml") for name in line["areas"])) for line in lines]


def page(tree: Tree) -> str:
    """Return the page."""
    lines = lines_of(tree)
    summary = "".join(f"- {line.text}: {', '.join(area.link for area in line.areas)}.\n" for line in lines)
    sections = (part for line in lines for area in line.areas for part in _section(area))
    return _HEAD + summary + _FOOT + "".join(f"\n{part}\n" for part in sections)


def _area(tree: Tree, path: str) -> Area:
    data = tomllib.loads(tree.text(path))
    promises = tuple(Promise(p["promise"], p.get("limits", ""), tuple(p["tests"])) for p in data["promise"])
    return Area(path, data["title"], data.get("about", ""), promises)


def _section(area: Area) -> Iterator[str]:
    yield f"## {area.title}"
    if area.about:
        yield area.about
    rows = (f"| {p.text} | {p.limits} | {', '.join(f'`{test}`' for test in p.tests)} |\n" for p in area.promises)
    yield "| Promise | Limits | Tests |\n|---|---|---|\n" + "".join(rows).rstrip()


if __name__ == "__main__":
    print(page(Tree(ROOT)), end="")
