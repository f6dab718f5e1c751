"""Messages to the supervisor that no stage handles in each pipeline."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from tests.lint.tree import Finding, Tree

RUNTIME: Final = "engine/levada/runtime"
_BASES: Final = frozenset({"Message", "Ask", "Recorded"})


def handled_messages(tree: Tree) -> Iterator[Finding]:
    """Report messages whose every handler is registered under a condition.

    A message without a handler ends the engine. The sender does not know of the condition, such as a capability of the
    destination, so the handler has to look at it.
    """
    handled: set[str] = set()
    for path in tree.below(RUNTIME):
        for function in tree.module(path).nodes(ast.FunctionDef):
            for statement in function.body:
                handled |= _registered(statement)
    for path in tree.below(RUNTIME):
        for made in tree.module(path).nodes(ast.ClassDef):
            if made.name not in _BASES | handled and _BASES & {_name(base) for base in made.bases}:
                yield Finding(path, made.lineno, f"register a handler of {made.name} without a condition")


def _registered(statement: ast.stmt) -> set[str]:
    """Return the kind of the message that a statement registers a handler of."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "on" and call.args:
        return {_name(call.args[0])}
    return set()


def _name(node: ast.expr) -> str:
    node = node.value if isinstance(node, ast.Subscript) else node
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
