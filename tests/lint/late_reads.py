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
_RUNNING: Final = frozenset({"running", "pipeline", "engine", "shop", "bank"})
"""Names of an engine or a pipeline that runs. It publishes its progress after what the progress describes."""
_NESTED: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def late_reads(tree: Tree) -> Iterator[Finding]:
    """Report Events, metrics, logs and progress that a test reads once. They may follow what it has waited for.

    A function or lambda within the test may read them, because it is passed to a wait. A line of a test that has waited
    for the end of all writes has ``# paced:`` and the reason.
    """
    for path in tree.below("tests"):
        lines, is_live = tree.text(path).splitlines(), path.startswith(LIVE)
        for function in tree.module(path).nodes(ast.FunctionDef):
            if not function.name.startswith("test_"):
                continue
            for call in _calls(function):
                is_late = _reads_progress(call) or (is_live and _reads_late(call))
                if is_late and PACED not in lines[call.lineno - 1]:
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


def _reads_progress(call: ast.Call) -> bool:
    """Return True for ``rig.running.progress()`` and the like."""
    function = call.func
    if not isinstance(function, ast.Attribute) or function.attr != "progress" or call.args or call.keywords:
        return False
    of = function.value
    name = of.attr if isinstance(of, ast.Attribute) else of.id if isinstance(of, ast.Name) else ""
    return name in _RUNNING
