"""Names in SQL are compared, and never parsed: a role may be called ``svc@proj.iam``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from tests.lint.tree import Finding, Tree

_PARSED: Final = re.compile(
    r"(?<!'pg_catalog\.pg_class')(?<!'pg_class')(?<!array_out')::(pg_catalog\.)?reg[a-z]+\b"
    r"|\bto_reg[a-z]+\s*\("
)
"""A cast to one of the reg types, other than that of a constant. Its text is quoted, and its input must be."""


def parsed_names(tree: Tree) -> Iterator[Finding]:
    """Report casts of names to ``regrole``, ``regclass`` and the like, which parse them."""
    for path in tree.below("engine", "operator"):
        for number, line in enumerate(tree.text(path).splitlines(), 1):
            if found := _PARSED.search(line):
                yield Finding(path, number, f"{found[0]} parses a name, compare it with a column of the catalog")
