"""The layout of the tree."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.lint.tree import ROOT, Finding, Tree, line_of

IN_THE_IMAGE: Final = "Dockerfile"
"""Its paths are the image's."""


def source_roots(tree: Tree) -> Iterator[Finding]:
    """Report source roots that are packages. One in operator/ would shadow the standard library's module."""
    for folder in ("engine", "operator"):
        if tree.has(f"{folder}/__init__.py"):
            yield Finding(f"{folder}/__init__.py", 0, "a source root is no package, remove the file")


def machine_paths(tree: Tree) -> Iterator[Finding]:
    """Report paths of this checkout or of a hidden folder in this home."""
    for private in (f"{ROOT}/", f"{Path.home()}/."):
        for path in tree.files:
            if path != IN_THE_IMAGE and private.encode() in tree.data(path):
                line = line_of(tree.data(path).decode(errors="replace"), private)
                yield Finding(path, line, f"the file names {private} of this machine, remove the path")
