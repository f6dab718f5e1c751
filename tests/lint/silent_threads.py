"""Functions of threads that catch every error, but not those that are no Exception."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from tests.lint.tree import Finding, Module, Tree

ENGINE: Final = "engine/levada"


def silent_threads(tree: Tree) -> Iterator[Finding]:
    """Report ``except Exception`` in a function that a thread or a pool runs.

    A user's class may raise an exit, a cancellation of asyncio or a panic of a library in Rust. It would end the thread
    in silence, and what waits for the thread's report would wait for ever.
    """
    for path in tree.below(ENGINE):
        module = tree.module(path)
        names = _run_by_threads(module)
        for function in module.nodes(ast.FunctionDef):
            if function.name in names:
                for node in ast.walk(function):
                    if isinstance(node, ast.ExceptHandler) and getattr(node.type, "id", "") == "Exception":
                        yield Finding(path, node.lineno, f"{function.name} runs in a thread, catch BaseException")


def _run_by_threads(module: Module) -> set[str]:
    """Return the names of the functions that are given to `marked_thread` or to a pool."""
    starts = [c for c in module.nodes(ast.Call) if c.args and _name(c.func) in ("marked_thread", "submit")]
    return {_name(call.args[0]) for call in starts}


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
