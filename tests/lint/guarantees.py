"""Each promise of docs/guarantees is short and names tests that pytest collects, and the page has it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import PurePath
from typing import Final

from tests.lint.guarantees_page import FOLDER, SUMMARY, Promise, lines_of, page
from tests.lint.tree import Finding, Tree, line_of

PAGE: Final = "docs/guarantees.md"
_MOST_WORDS: Final = 25
_SUITES: Final = "engine/levada/testing/"


def guarantees(tree: Tree) -> Iterator[Finding]:
    """Report promises that are long or that no test shows, and a docs/guarantees.md that is not made of them."""
    lines = lines_of(tree)
    areas = [area for line in lines for area in line.areas]
    for path in sorted(set(tree.below(FOLDER, suffix=".toml")) - {SUMMARY} - {area.path for area in areas}):
        yield Finding(path, 0, f"no line of {SUMMARY} has this area")
    for area in areas:
        for promise in area.promises:
            at = line_of(tree.text(area.path), promise.text)
            yield from (Finding(area.path, at, text) for text in _faults(tree, promise))
    if tree.text(PAGE) != page(tree):
        yield Finding(PAGE, 0, f"{FOLDER} makes another page, run python -m tests.lint.guarantees_page > {PAGE}")


def _faults(tree: Tree, promise: Promise) -> Iterator[str]:
    if max(len(promise.text.split()), len(promise.limits.split())) > _MOST_WORDS:
        yield f"a promise and its limits have at most {_MOST_WORDS} words each, make two of it"
    if not promise.tests:
        yield "the promise names no test that shows it"
    for name in promise.tests:
        path, _, test = name.partition("::")
        if not tree.has(path):
            yield f"{path} does not exist, name the test's file of today"
        elif not (found := _collected(tree, path)) or (test and test not in found):
            yield f"pytest collects no {test or 'test'} in {path}, name a test that shows the promise"


def _collected(tree: Tree, path: str) -> set[str]:
    """Return the tests of a file that pytest collects there, or by subclasses of its classes."""
    module = tree.module(path).tree
    if path.startswith(_SUITES):
        classes = [c for c in module.body if isinstance(c, ast.ClassDef) and c.name in _bases_of_tests(tree)]
    elif PurePath(path).match("test_*.py"):
        classes = [c for c in module.body if isinstance(c, ast.ClassDef) and c.name.startswith("Test")]
    else:
        return set()
    bodies = [module.body] if not path.startswith(_SUITES) else []
    functions = [f for body in (*bodies, *(c.body for c in classes)) for f in body if isinstance(f, ast.FunctionDef)]
    return {f.name for f in functions if f.name.startswith("test_") and not _is_skipped(f)}


def _is_skipped(function: ast.FunctionDef) -> bool:
    return any(ast.unparse(mark).startswith("pytest.mark.skip(") for mark in function.decorator_list)


def _bases_of_tests(tree: Tree) -> set[str]:
    """Return the classes of which a class of tests inherits."""
    modules = (tree.module(path) for path in tree.below("tests") if PurePath(path).match("test_*.py"))
    classes = (c for module in modules for c in module.nodes(ast.ClassDef) if c.name.startswith("Test"))
    return {base.id for c in classes for base in c.bases if isinstance(base, ast.Name)}
