"""docs/guarantees.md names the tests that hold it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from tests.lint.tree import Finding, Tree

DOCUMENT: Final = "docs/guarantees.md"
_TEST: Final = re.compile(r"`((?:tests|engine/levada/testing)/[\w/]+\.py)(?:::(\w+))?`")
_HEAD: Final = re.compile(r"\|(---|\s*Event)")


def guarantees(tree: Tree) -> Iterator[Finding]:
    """Report rows of docs/guarantees.md without a test, and tests that do not exist."""
    for number, line in enumerate(tree.text(DOCUMENT).splitlines(), 1):
        named = _TEST.findall(line)
        if line.startswith("|") and not _HEAD.match(line) and not named:
            yield Finding(DOCUMENT, number, "the row names no test that checks it")
        for path, test in named:
            if not tree.has(path):
                yield Finding(DOCUMENT, number, f"{path} does not exist, name the test's file of today")
            elif test and test not in {node.name for node in tree.module(path).nodes(ast.FunctionDef)}:
                yield Finding(DOCUMENT, number, f"{path} has no {test}, name a test that checks the row")
