"""Constants of the project that a test overwrites."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Final

from tests.lint.tree import Finding, Module, Tree

OURS: Final = ("levada", "levada_operator")


def overwritten_constants(tree: Tree) -> Iterator[Finding]:
    """Report constants of the project that a test overwrites. It passes a limits value instead."""
    for path in tree.below("tests"):
        module = tree.module(path)
        names = dict(_imported(module))
        for line, target in (*_assigned(module, names), *_patched(module, names)):
            root, _, rest = target.partition(".")
            if root in OURS and rest.rpartition(".")[2].isupper():
                yield Finding(path, line, f"{target} is a constant, pass a limits value instead")


def _assigned(module: Module, names: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    """Yield the attributes that are assigned, by their dotted paths."""
    for node in module.nodes(ast.Attribute):
        if isinstance(node.ctx, ast.Store):
            yield node.lineno, _dotted(node, names)


def _patched(module: Module, names: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    """Yield the attributes that ``setattr`` replaces, also that of pytest's MonkeyPatch."""
    for call in module.nodes(ast.Call):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if name == "setattr" and call.args:
            owner, *rest = call.args[:2]
            parts = [owner] if isinstance(owner, ast.Constant) else [owner, *rest]
            yield call.lineno, ".".join(_dotted(part, names) for part in parts)


def _imported(module: Module) -> Iterator[tuple[str, str]]:
    """Yield each imported name with the dotted path of what it is."""
    for node in module.nodes(ast.ImportFrom):
        yield from ((a.asname or a.name, f"{node.module}.{a.name}") for a in node.names)
    for plain in module.nodes(ast.Import):
        yield from ((a.asname, a.name) if a.asname else (a.name.partition(".")[0],) * 2 for a in plain.names)


def _dotted(node: ast.expr, names: Mapping[str, str]) -> str:
    """Return the dotted path of an expression, by the imports, or the text of a constant."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value, names)}.{node.attr}"
    return names.get(node.id, node.id) if isinstance(node, ast.Name) else ""
