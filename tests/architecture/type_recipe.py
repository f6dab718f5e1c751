"""The engine's modules that a new `Kind` of values concerns, against CONTRIBUTING's recipe for a PostgreSQL type."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from tests.architecture.language import ROOT

from levada.schema import Kind

ENGINE: Final = ROOT / "engine" / "levada"
_RECIPE: Final = re.compile(r"^\*\*A PostgreSQL type\.\*\*.*?(?=^\*\*)", re.DOTALL | re.MULTILINE)
_ARROW_PART: Final = "A new Arrow type"
_NAMED: Final = re.compile(r"^\| `([\w/]+\.py)`", re.MULTILINE)
_ELSEWHERE: Final = re.compile(r"`((?:tests|docs)/[\w/.]+)`")
_MEMBERS: Final = frozenset(kind.name for kind in Kind)
_CONTAINERS: Final = frozenset({"is_list", "is_large_list", "is_large_string", "is_large_binary"})
"""Questions about how values are kept, which are the same for each type of them."""


def findings() -> Iterator[str]:
    """Yield the modules that the recipe does not name, the named ones with nothing to add, and missing paths."""
    found = _RECIPE.search((ROOT / "CONTRIBUTING.md").read_text())
    recipe = found.group() if found else ""
    by_kind, _, by_arrow = recipe.partition(_ARROW_PART)
    modules = {str(file.relative_to(ENGINE)): file.read_text() for file in sorted(ENGINE.rglob("*.py"))}
    kinds = {path for path, code in modules.items() if "Kind" in code and decides_by_kind(ast.parse(code))}
    arrow = {path for path, code in modules.items() if "pa.types" in code and decides_by_arrow_type(ast.parse(code))}
    yield from _differences("kinds of values", kinds, set(_NAMED.findall(by_kind)))
    yield from _differences("types of Arrow", arrow, set(_NAMED.findall(by_arrow)))
    for path in _ELSEWHERE.findall(recipe):
        if not (ROOT / path).exists():
            yield f"the recipe for a PostgreSQL type in CONTRIBUTING.md names {path}, which does not exist"


def decides_by_kind(tree: ast.Module) -> bool:
    """Return True if a module distinguishes kinds of values.

    A member of `levada.schema.Kind` is then the key of a dict, an element of a set, list or tuple, a side of a
    comparison or a pattern. A member that is only an argument, as in ``ColumnType(Kind.INT8)``, decides nothing.
    """
    return _has_schema_kind(tree) and any(_is_member(part) for node in ast.walk(tree) for part in _deciding(node))


def decides_by_arrow_type(tree: ast.Module) -> bool:
    """Return True if a module asks `pyarrow.types` for the type of values."""
    return any(
        isinstance(node, ast.Attribute)
        and ast.unparse(node.value) == "pa.types"
        and node.attr.startswith("is_")
        and node.attr not in _CONTAINERS
        for node in ast.walk(tree)
    )


def _differences(of: str, found: set[str], named: set[str]) -> Iterator[str]:
    for path in sorted(found - named):
        yield f"{path} distinguishes {of}, and the recipe for a PostgreSQL type in CONTRIBUTING.md does not name it"
    for path in sorted(named - found):
        yield f"the recipe for a PostgreSQL type in CONTRIBUTING.md names {path}, which distinguishes no {of}"


def _has_schema_kind(tree: ast.Module) -> bool:
    return any(
        (
            isinstance(node, ast.ImportFrom)
            and node.module in ("levada.schema", "levada.schema.types")
            and any(name.name == "Kind" for name in node.names)
        )
        or (isinstance(node, ast.ClassDef) and node.name == "Kind" and _names(node) >= _MEMBERS)
        for node in ast.walk(tree)
    )


def _names(node: ast.ClassDef) -> set[str]:
    return {ast.unparse(target) for line in node.body if isinstance(line, ast.Assign) for target in line.targets}


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


def _is_member(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Attribute) and ast.unparse(node.value) == "Kind" and node.attr in _MEMBERS
