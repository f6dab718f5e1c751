"""Reads of what is written later than the condition that a test has waited for."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from tests.lint.tests_code import PACED
from tests.lint.tree import Finding, Tree

LIVE: Final = ("tests/cluster/", "tests/operator/test_process.py")
"""Tests of an operator that runs. Others call its functions, whose results are all there."""
_READERS: Final = frozenset({"events", "metrics"})
"""Functions and methods that return what there is so far."""
_KINDS: Final = frozenset({"events", "logs"})
"""Kinds of objects and commands of kubectl for the same."""
_NESTED: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def late_reads(tree: Tree) -> Iterator[Finding]:
    """Report Events, metrics and logs that a test reads once. They may follow the state that it has waited for.

    A function or lambda within the test may read them, because it is passed to a wait. A line of a test that has waited
    for the end of all writes has ``# paced:`` and the reason.
    """
    for path in (path for path in tree.below("tests") if path.startswith(LIVE)):
        lines = tree.text(path).splitlines()
        for function in tree.module(path).nodes(ast.FunctionDef):
            if not function.name.startswith("test_"):
                continue
            for call in _calls(function):
                if _reads_late(call) and PACED not in lines[call.lineno - 1]:
                    yield Finding(path, call.lineno, "this may be written later, read it in `eventually` or `until`")


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls of a function itself, in no nested one."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, _NESTED):
            if isinstance(child, ast.Call):
                yield child
            yield from _calls(child)


def _reads_late(call: ast.Call) -> bool:
    """Return True for ``events(...)``, ``x.metrics()``, ``x.get("events")`` and ``kubectl("logs", ...)``."""
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    first = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else None
    return name in _READERS or (name in ("get", "kubectl", "run") and first in _KINDS)
