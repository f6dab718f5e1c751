"""Statements at the source whose errors are not made Levada's."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from tests.lint.tree import Finding, Tree

_LAYER: Final = "engine/levada/postgres/"
_OTHER_SERVERS: Final = ("engine/levada/stores/", "engine/levada/destinations/")
"""Their connections are to other servers, whose errors they name themselves."""
_CALLS: Final = frozenset({"execute", "executemany", "cursor", "copy"})
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(slots=True)
class _Function:
    """The lines of a function's bare statements, the functions that it calls without a guard, its names of guards."""

    statements: list[int] = field(default_factory=list)
    bare_calls: set[str] = field(default_factory=set)
    guards: set[str] = field(default_factory=set)


def source_calls(tree: Tree) -> Iterator[Finding]:
    """Report statements at the source whose errors escape ``source_errors``, so that a table is parked as by a bug.

    A function, all of whose callers are within ``source_errors``, needs none of its own. So does a block that handles
    psycopg's errors itself.
    """
    places = {path: _functions(tree, path) for path in tree.below("engine/levada")}
    callers: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    for path, functions in places.items():
        for name, function in functions.items():
            for called in function.bare_calls:
                callers[_key(path, called)].append((path, name))
    for path, functions in places.items():
        for name, function in functions.items():
            if path.startswith(_LAYER) and function.statements and _escapes(path, name, callers, set()):
                for line in function.statements:
                    yield Finding(path, line, "psycopg's error escapes from here: use `source_errors`")


def _key(path: str, name: str) -> str:
    """Return what a call of this name in this module calls. A private function is called in its module alone."""
    return f"{path}:{name}" if name.startswith("_") else name


def _escapes(path: str, name: str, callers: Mapping[str, list[tuple[str, str]]], seen: set[tuple[str, str]]) -> bool:
    """Return True if what the function raises leaves the layer."""
    if (path, name) in seen:
        return False
    if not path.startswith(_LAYER):
        return not path.startswith(_OTHER_SERVERS)
    return any(_escapes(*caller, callers, seen | {(path, name)}) for caller in callers.get(_key(path, name), ()))


def _functions(tree: Tree, path: str) -> Mapping[str, _Function]:
    found: dict[str, _Function] = {}
    for node in tree.module(path).nodes(*_FUNCTIONS):
        function = found.setdefault(node.name, _Function())
        connections = {arg.arg for arg in (*node.args.args, *node.args.kwonlyargs) if _is_connection(arg)}
        if not any(_guards(decorator) for decorator in node.decorator_list):
            _collect(node.body, connections, function)
    return found


def _is_connection(arg: ast.arg) -> bool:
    return arg.annotation is not None and ast.unparse(arg.annotation).startswith("psycopg.Connection")


def _guards(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func).endswith("_errors")


def _collect(body: list[ast.stmt], connections: set[str], function: _Function) -> None:
    for statement in body:
        _visit(statement, connections, function)


def _visit(node: ast.AST, connections: set[str], function: _Function) -> None:
    if isinstance(node, (*_FUNCTIONS, ast.Lambda, ast.ClassDef)):
        return
    if isinstance(node, ast.Assign) and _guards(node.value):
        function.guards |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    if isinstance(node, ast.With) and any(
        _guards(its := item.context_expr) or (isinstance(its, ast.Name) and its.id in function.guards)
        for item in node.items
    ):
        return
    if isinstance(node, ast.Try) and any(_handles(handler) for handler in node.handlers):
        for other in (*node.handlers, *node.orelse, *node.finalbody):
            _visit(other, connections, function)
        return
    if isinstance(node, ast.Call):
        its = node.func
        if isinstance(its, ast.Attribute) and isinstance(its.value, ast.Name):
            if its.attr in _CALLS and its.value.id in connections:
                function.statements.append(node.lineno)
            elif its.value.id == "self":
                function.bare_calls.add(its.attr)
        elif isinstance(its, ast.Name):
            function.bare_calls.add(its.id)
    for child in ast.iter_child_nodes(node):
        _visit(child, connections, function)


def _handles(handler: ast.ExceptHandler) -> bool:
    """Return True for a handler of any error of psycopg."""
    return handler.type is None or ast.unparse(handler.type) in (
        "psycopg.Error",
        "psycopg.OperationalError",
        "Exception",
    )
