"""The names that the project's files import from one another."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from typing import Final

from tests.lint.tree import Finding, Tree

_ROOTS: Final = {"levada": "engine/", "levada_operator": "operator/", "tests": "", "benchmarks": ""}
"""The folder of each of the project's packages."""


def imported_names(tree: Tree) -> Iterator[Finding]:
    """Report imports of what the project does not have. mypy reads no tests, and ruff reads each file alone."""

    @cache
    def file_of(module: str) -> str | None:
        path = _ROOTS[module.partition(".")[0]] + module.replace(".", "/")
        found = (f"{path}.py", f"{path}/__init__.py", path)
        return next((each for each in found if tree.has(each)), None)

    @cache
    def names_in(path: str) -> frozenset[str]:
        return frozenset(_defined(tree.module(path).tree.body)) if path.endswith(".py") else frozenset()

    for path in tree.files:
        if not path.endswith(".py"):
            continue
        for module, name, line in _imports(tree, path):
            if module.partition(".")[0] not in _ROOTS:
                continue
            if (file := file_of(module)) is None:
                yield Finding(path, line, f"there is no module {module}, import what is in its place")
            elif name and not {name, "__getattr__"} & names_in(file) and file_of(f"{module}.{name}") is None:
                yield Finding(path, line, f"{module} has no {name}, import what is in its place")


def _imports(tree: Tree, path: str) -> Iterator[tuple[str, str, int]]:
    """Yield each imported module, the name that is taken from it, which may be empty, and the line."""
    module = tree.module(path)
    for node in module.nodes(ast.Import):
        for alias in node.names:
            yield alias.name, "", node.lineno
    for of in module.nodes(ast.ImportFrom):
        if of.level == 0 and of.module:
            for alias in of.names:
                yield of.module, "" if alias.name == "*" else alias.name, of.lineno


def _defined(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the names that statements of a module bind, also within its conditions."""
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.Import() | ast.ImportFrom():
                yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
            case ast.Assign() | ast.AnnAssign() | ast.For() | ast.With():
                yield from _bound(node)
        for part in ("body", "orelse", "finalbody"):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                yield from _defined(getattr(node, part, []))
        for handler in getattr(node, "handlers", []):
            yield from _defined(handler.body)


def _bound(node: ast.AST) -> Iterator[str]:
    for child in ast.walk(node):
        if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            yield child.id
