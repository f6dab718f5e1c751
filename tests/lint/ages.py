"""Ages of times that a clock wrote which may have been ahead."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from tests.lint.tree import Finding, Tree

ANY_WAY: Final = "# either way:"
"""The mark above a line that is right for a time of the future too, followed by the reason."""


def ages(tree: Tree) -> Iterator[Finding]:
    """Report comparisons of a time span since a stored time, which is negative if the clock was ahead then.

    `levada.values.age_of` says that such a time is old. So nothing waits until it has come. A line for which a negative
    span is right has ``# either way:`` and the reason above it.
    """
    for path in tree.below("engine", "operator"):
        lines, seen = tree.text(path).splitlines(), set[int]()
        for function in tree.module(path).nodes(ast.FunctionDef, ast.AsyncFunctionDef):
            now = _names_of_now(function)
            for node in ast.walk(function):
                if not isinstance(node, ast.Compare) or node.lineno in seen:
                    continue
                if any(_is_span(part, now) for part in (node.left, *node.comparators)):
                    seen.add(node.lineno)
                    if ANY_WAY not in lines[node.lineno - 2]:
                        yield Finding(path, node.lineno, "compare age_of(AT, NOW), as AT may be in the future")


def _names_of_now(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Return the names of the current time of day in a function: parameters of this type, and what it reads itself."""
    arguments = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    names = {
        a.arg for a in arguments
        if a.arg == "now" and isinstance(a.annotation, ast.Name) and a.annotation.id == "datetime"
    }  # fmt: skip
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and any(_is_clock(value) for value in _elements(node.value)):
            names |= {
                target.id
                for targets in node.targets
                for target, value in zip(_elements(targets), _elements(node.value), strict=False)
                if isinstance(target, ast.Name) and _is_clock(value)
            }
    return names


def _elements(node: ast.expr) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple) else [node]


def _is_clock(node: ast.expr) -> bool:
    """Return True for ``datetime.now(UTC)`` and ``_utcnow()``."""
    text = ast.unparse(node)
    return text.startswith("datetime.now(") or text == "_utcnow()"


def _is_span(node: ast.expr, now: set[str]) -> bool:
    """Return True for the time since another one, not for its absolute value."""
    if isinstance(node, ast.Attribute | ast.Call) and "total_seconds" in ast.unparse(node):
        node = node.func.value if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else node
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Sub):
        return False
    left = node.left
    of_observed = isinstance(left, ast.Attribute) and ast.unparse(left) == "observed.now"
    return of_observed or _is_clock(left) or (isinstance(left, ast.Name) and left.id in now)
