"""docs/guarantees.md names the tests that hold it: each of them exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_TEST = re.compile(r"`((?:tests|engine/levada/testing)/[\w/]+\.py)(?:::(\w+))?`")


def test_every_named_test_exists() -> None:
    """A row whose test was renamed or removed would promise what nothing checks."""
    text = (_ROOT / "docs" / "guarantees.md").read_text("utf-8")
    named = _TEST.findall(text)
    assert len(named) > 100
    missing = {f"{path}::{test}" for path, test in named if test not in _tests_of(path)}
    assert not missing
    rows = [line for line in text.splitlines() if line.startswith("|") and not re.match(r"\|(---|\s*Event)", line)]
    assert not [row for row in rows if not _TEST.search(row)], "a row without a test"


def _tests_of(path: str) -> set[str]:
    file = _ROOT / path
    if not file.exists():
        return set()
    return {"", *(n.name for n in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(n, ast.FunctionDef))}
