"""Imports, overwritten attributes and waits of tests."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from tests.lint.tree import Finding, Tree

PYTHON: Final = ("tests", "benchmarks", "examples")
WAITING: Final = "tests/rigs/waiting.py"
"""The one module that waits with a limit."""
PACED: Final = "# paced: "
_TEST_MODULE: Final = re.compile(r"tests\.(?:.*\.)?(?:test_\w+|conftest)")
_CLOCKS: Final = frozenset({"monotonic", "perf_counter", "time"})
_SLEEP: Final = frozenset({"sleep"})
_LIMITS: Final = frozenset({"timeout", "timeout_s", "limit_s"})
_ENDS: Final = frozenset({"join", "result", "communicate"})
"""Methods whose first argument is the limit of a wait for an end."""
_MINUTE_S: Final = 60
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def private_attributes(tree: Tree) -> Iterator[Finding]:
    """Report private attributes of other objects that a test assigns or patches."""
    text = "is private, pass the behaviour to a constructor"
    for path in tree.below("tests"):
        module = tree.module(path)
        for node in module.nodes(ast.Attribute):
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if isinstance(node.ctx, ast.Store) and _is_private(node.attr) and not own:
                yield Finding(path, node.lineno, f"{node.attr} {text}")
        for call in module.nodes(ast.Call):
            if isinstance(call.func, ast.Attribute) and call.func.attr == "setattr":
                names = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
                for name in names[:1]:
                    if _is_private(name.rpartition(".")[2]):
                        yield Finding(path, call.lineno, f"{name} {text}")


_SHARED_LOG: Final = "server.log.read_text()"


def helper_imports(tree: Tree) -> Iterator[Finding]:
    """Report imports from a ``test_*.py`` or a ``conftest.py``. Helpers are in tests/rigs or in plain modules."""
    for path in tree.below(*PYTHON):
        module = tree.module(path)
        named = [(node.lineno, f"{node.module}.{a.name}") for node in module.nodes(ast.ImportFrom) for a in node.names]
        named += [(node.lineno, a.name) for node in module.nodes(ast.Import) for a in node.names]
        for line, found in {(line, f[0]) for line, name in named if (f := _TEST_MODULE.match(name))}:
            yield Finding(path, line, f"{found} is a module of tests, move the helper to tests/rigs")


def own_waits(tree: Tree) -> Iterator[Finding]:
    """Report deadlines of their own and sleeps of a fixed time in loops of tests. They wait by tests/rigs/waiting.py.

    A line that paces a load has ``# paced:`` and the reason.
    """
    for path in tree.below("tests"):
        module = tree.module(path)
        deadlines = {c.lineno for c in module.nodes(ast.Compare) if any(_is_call(n, _CLOCKS) for n in ast.walk(c))}
        loops = (*module.nodes(ast.While), *module.nodes(ast.For))
        calls = [node for loop in loops for node in _inside(loop) if isinstance(node, ast.Call)]
        sleeps = {c.lineno for c in calls if _is_call(c, _SLEEP) and isinstance(c.args[0], ast.Constant)}
        lines = tree.text(path).splitlines() if path != WAITING else []
        for number, line in enumerate(lines, 1):
            if number in deadlines | sleeps and PACED not in line:
                what = "a deadline of its own" if number in deadlines else "a sleep in a loop"
                yield Finding(path, number, f"{what}, wait by {WAITING}")


def short_limits(tree: Tree) -> Iterator[Finding]:
    """Report limits below a minute of waits in tests. A busy machine passes them, and they prove nothing.

    A call that waits that long on purpose has ``# paced:`` and the reason.
    """
    for path in tree.below("tests"):
        module, lines = tree.module(path), tree.text(path).splitlines()
        for call in module.nodes(ast.Call):
            given = [keyword.value for keyword in call.keywords if keyword.arg in _LIMITS]
            if isinstance(call.func, ast.Attribute) and call.func.attr in _ENDS:
                given += call.args
            own = lines[call.lineno - 1 : call.end_lineno]
            if any(_is_short(value) for value in given) and not any(PACED in line for line in own):
                yield Finding(path, call.lineno, f"a limit below {_MINUTE_S} s, use LIMIT_S of {WAITING}")


def _is_short(value: ast.expr) -> bool:
    """Return True for a number of seconds that a busy machine passes. 0 does not wait."""
    return isinstance(value, ast.Constant) and isinstance(value.value, int | float) and 0 < value.value < _MINUTE_S


def _is_private(name: str) -> bool:
    """Return True for a name with one leading underscore."""
    return name.startswith("_") and not name.startswith("__")


def _is_call(node: ast.AST, names: frozenset[str]) -> bool:
    """Return True for a call of one of these functions of the module `time`."""
    if not isinstance(node, ast.Call):
        return False
    function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr in names and isinstance(function.value, ast.Name) and function.value.id == "time"
    return isinstance(function, ast.Name) and function.id in names - {"time"}


def _inside(loop: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a loop, without those of inner loops and of functions that it defines."""
    for child in ast.iter_child_nodes(loop):
        if not isinstance(child, (*_FUNCTIONS, ast.While, ast.For)):
            yield child
            yield from _inside(child)


def shared_logs(tree: Tree) -> Iterator[Finding]:
    """Report tests that read a server's log as UTF-8. `tests.rigs.database.log_of` reads what other tests wrote too."""
    for path in tree.below("tests"):
        for number, line in enumerate(tree.text(path).splitlines(), 1):
            if _SHARED_LOG in line and not path.startswith("tests/lint/"):
                yield Finding(path, number, "the log of a server may have bytes that are no UTF-8, use log_of")
