"""Names in SQL are compared, and never parsed: a role may be called ``svc@proj.iam``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from tests.lint.tree import Finding, Tree

_PARSED: Final = re.compile(
    r"(?P<constant>'(pg_catalog\.)?(pg_|array_)\w+')?::(pg_catalog\.)?reg[a-z]+\b"
    r"|\bto_reg[a-z]+\s*\((?!pg_catalog\.format\('%I)"
)
"""A cast to one of the reg types. That of a constant of PostgreSQL's own is right, and so is a name that is quoted."""


def parsed_names(tree: Tree) -> Iterator[Finding]:
    """Report casts of names to ``regrole``, ``regclass`` and the like, which parse them."""
    for path in tree.below("engine", "operator"):
        for number, line in enumerate(tree.text(path).splitlines(), 1):
            for found in _PARSED.finditer(line):
                if found["constant"] is None:
                    yield Finding(path, number, f"{found[0]} parses a name, compare it with a column of the catalog")
