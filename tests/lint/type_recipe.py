"""The engine's modules that a new `Kind` of values concerns, against CONTRIBUTING's recipe for a PostgreSQL type."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from tests.lint.tree import Finding, Module, Tree, line_of

ENGINE: Final = "engine/levada"
KINDS: Final = "engine/levada/schema/types.py"
DOCUMENT: Final = "CONTRIBUTING.md"
_RECIPE: Final = re.compile(r"^\*\*A PostgreSQL type\.\*\*.*?(?=^\*\*)", re.DOTALL | re.MULTILINE)
_ARROW_PART: Final = "A new Arrow type"
_NAMED: Final = re.compile(r"^\| `([\w/]+\.py)`", re.MULTILINE)
_ELSEWHERE: Final = re.compile(r"`((?:tests|docs)/[\w/.]+)`")
_CONTAINERS: Final = frozenset({"is_list", "is_large_list", "is_large_string", "is_large_binary"})
"""Questions about how values are kept, which are the same for each type of them."""


def type_recipe(tree: Tree) -> Iterator[Finding]:
    """Report modules that a new type concerns and the recipe of CONTRIBUTING.md does not name, and the reverse."""
    text = tree.text(DOCUMENT)
    found = _RECIPE.search(text)
    recipe = found.group() if found else ""
    by_kind, _, by_arrow = recipe.partition(_ARROW_PART)
    members = _members(tree.module(KINDS))
    paths = {path.removeprefix(f"{ENGINE}/"): path for path in tree.below(ENGINE)}
    kinds = {name for name, path in paths.items() if _decides_by_kind(tree.module(path), members) or path == KINDS}
    arrow = {name for name, path in paths.items() if _decides_by_arrow_type(tree.module(path))}
    for of, deciding, part in (("kinds of values", kinds, by_kind), ("types of Arrow", arrow, by_arrow)):
        named = set(_NAMED.findall(part))
        for name in sorted(deciding - named):
            yield Finding(paths[name], 0, f"it distinguishes {of}, name it in the recipe for a type of {DOCUMENT}")
        for name in sorted(named - deciding):
            line = line_of(text, f"| `{name}`")
            yield Finding(DOCUMENT, line, f"{name} distinguishes no {of}, remove it from the recipe for a type")
    for path in _ELSEWHERE.findall(recipe):
        if not tree.has(path):
            yield Finding(DOCUMENT, line_of(text, path), f"{path} of the recipe for a type does not exist")


def _decides_by_kind(module: Module, members: set[str]) -> bool:
    """Return True if a module distinguishes kinds of values.

    A member of `levada.schema.Kind` is then the key of a dict, an element of a set, list or tuple, a side of a
    comparison or a pattern. A member that is only an argument, as in ``ColumnType(Kind.INT8)``, decides nothing.
    """
    imported = any(
        node.module in ("levada.schema", "levada.schema.types") and any(name.name == "Kind" for name in node.names)
        for node in module.nodes(ast.ImportFrom)
    )
    deciding = module.nodes(ast.Dict, ast.Set, ast.List, ast.Tuple, ast.Compare, ast.MatchValue) if imported else []
    return any(
        isinstance(part, ast.Attribute) and ast.unparse(part.value) == "Kind" and part.attr in members
        for node in deciding
        for part in _deciding(node)
    )


def _decides_by_arrow_type(module: Module) -> bool:
    """Return True if a module asks `pyarrow.types` for the type of values."""
    return any(
        node.attr.startswith("is_") and node.attr not in _CONTAINERS and ast.unparse(node.value) == "pa.types"
        for node in module.nodes(ast.Attribute)
    )


def _members(module: Module) -> set[str]:
    """Return the names of the members of Kind."""
    return {
        ast.unparse(target)
        for node in module.nodes(ast.ClassDef)
        if node.name == "Kind"
        for line in node.body
        if isinstance(line, ast.Assign)
        for target in line.targets
    }


def _deciding(node: ast.AST) -> Iterator[ast.AST | None]:
    """Yield the parts of a node that decide something by their value."""
    match node:
        case ast.Dict():
            yield from node.keys
        case ast.Set() | ast.List() | ast.Tuple():
            yield from node.elts
        case ast.Compare():
            yield from (node.left, *node.comparators)
        case ast.MatchValue():
            yield node.value
