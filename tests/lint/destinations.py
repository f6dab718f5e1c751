"""Destinations are known by their entry points alone."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from typing import Final

from tests.lint.language import CODE
from tests.lint.tree import Finding, Module, Tree

ALLOWED: Final = {
    # The names of loggers of libraries.
    "engine/levada/logs.py",
    # The file system of the staging area is PyIceberg's, which knows the properties of S3.
    "engine/levada/segments/staging.py",
    # The tables of a catalog in a source database have its name. Another pipeline may have made it.
    "engine/levada/postgres/written_tables.py",
    # A first manifest has a destination, which its reader replaces.
    "engine/levada/cli/new_manifest.py",
}

_WORDS: Final = (
    ast.Constant,
    ast.Name,
    ast.Attribute,
    ast.arg,
    ast.keyword,
    ast.FunctionDef,
    ast.ClassDef,
    ast.alias,
    ast.ImportFrom,
)


def destination_names(tree: Tree) -> Iterator[Finding]:
    """Report modules that name a destination, outside of its own package. ALLOWED has the exceptions."""
    points = tomllib.loads(tree.text("pyproject.toml"))["project"]["entry-points"]["levada.destinations"]
    own = tuple(f"engine/levada/destinations/{name}/" for name in points)
    # A source and a store are PostgreSQL too, so the name says nothing about the destination.
    pattern = re.compile("|".join(name for name in points if name != "postgres"), re.IGNORECASE)
    naming: dict[str, int] = {}
    for path in tree.below(*CODE):
        if not path.startswith(own):
            lines = [line for line, word in _words(tree.module(path)) if pattern.search(word)]
            naming |= {path: min(lines)} if lines else {}
    for path, line in naming.items():
        if path not in ALLOWED:
            yield Finding(path, line, "only a destination's own package may name it, ask its class or its settings")
    for path in sorted(ALLOWED - naming.keys()):
        yield Finding(path, 0, "the module names no destination, remove it from ALLOWED")


def _words(module: Module) -> Iterator[tuple[int, str]]:
    """Yield the identifiers and strings of a module with their lines, except for docstrings."""
    docs = {
        id(e.value)
        for node in module.bodies
        for e in node.body
        if isinstance(e, ast.Expr) and isinstance(e.value, ast.Constant)
    }
    for node in module.nodes(*_WORDS):
        match node:
            case ast.Constant(value=str(text), lineno=line) if id(node) not in docs:
                yield line, text
            case ast.Name(id=name, lineno=line) | ast.Attribute(attr=name, lineno=line):
                yield line, name
            case ast.arg(arg=name, lineno=line) | ast.keyword(arg=str(name), lineno=line):
                yield line, name
            case ast.FunctionDef(name=name, lineno=line) | ast.ClassDef(name=name, lineno=line):
                yield line, name
            case ast.alias(name=name, lineno=line) | ast.ImportFrom(module=str(name), lineno=line):
                yield line, name
