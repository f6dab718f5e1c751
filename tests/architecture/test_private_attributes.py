"""Tests do not overwrite what is private."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
FILES = sorted(TESTS.rglob("*.py"))


def overwritten(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield each private attribute of another object that is assigned or patched, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_private(node.attr):
            if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):
                yield node.lineno, node.attr
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "setattr":
            names = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            yield from ((node.lineno, name) for name in names[:1] if is_private(name.rpartition(".")[2]))


def is_private(name: str) -> bool:
    """Return True for a name with one leading underscore."""
    return name.startswith("_") and not name.startswith("__")


@pytest.mark.parametrize("file", FILES, ids=[str(file.relative_to(TESTS)) for file in FILES])
def test_nothing_private_is_overwritten(file: Path) -> None:
    """A test that needs another behaviour passes it to a constructor or changes a public constant of the module."""
    assert [f"{file.name}:{line}: {name}" for line, name in overwritten(ast.parse(file.read_text()))] == []
