"""Frozen values, which threads and layers share, hold no mutable containers."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from tests.lint.tree import Finding, Tree

ENGINE: Final = "engine/levada"
PACKAGES: Final = ("runtime", "apply", "destinations", "segments", "copy", "capture", "schema")
MUTABLE: Final = frozenset(
    {
        "dict",
        "list",
        "set",
        "bytearray",
        "defaultdict",
        "deque",
        "MutableMapping",
        "MutableSequence",
        "MutableSet",
    }
)


def frozen_values(tree: Tree) -> Iterator[Finding]:
    """Report mutable containers in frozen dataclasses, and functions that get a mapping to change."""
    for path in tree.below(*(f"{ENGINE}/{package}" for package in PACKAGES)):
        module = tree.module(path)
        for node in module.nodes(ast.ClassDef):
            if any("frozen=True" in ast.unparse(d) for d in node.decorator_list):
                for field in node.body:
                    if isinstance(field, ast.AnnAssign) and _is_mutable(field.annotation):
                        name = f"{node.name}.{ast.unparse(field.target)}"
                        yield Finding(path, field.lineno, f"{name} is mutable, hold a tuple, frozenset or Mapping")
        for function in module.nodes(ast.FunctionDef):
            for arg in [*function.args.args, *function.args.kwonlyargs]:
                if arg.annotation is not None and "MutableMapping" in ast.unparse(arg.annotation):
                    yield Finding(path, arg.lineno, f"{function.name}({arg.arg}) may be changed later, take a Mapping")


def _is_mutable(annotation: ast.expr) -> bool:
    """Return True if the annotation names a mutable container."""
    return any(isinstance(n, ast.Name) and n.id in MUTABLE for n in ast.walk(annotation))
