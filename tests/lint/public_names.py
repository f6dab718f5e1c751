"""The names that users import are a promise: none comes or goes unnoticed.

After a change on purpose: ``python -m tests.lint.public_names > tests/lint/public_names.txt``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from tests.lint.tree import ROOT, Finding, Tree, line_of

PACKAGES: Final = (
    "levada",
    "levada.capture",
    "levada.destinations",
    "levada.errors",
    "levada.events",
    "levada.schema",
    "levada.status",
    "levada.stores",
    "levada.testing",
)
GOLDEN: Final = "tests/lint/public_names.txt"
EXAMPLES: Final = (
    "examples/custom-destination/custom_destination.py",
    "examples/custom-store/custom_store.py",
    "examples/change-capture/change_capture.py",
)


def public_names(tree: Tree) -> list[str]:
    """Return every name in the ``__all__`` of the public packages, with its package."""
    return [f"{package}.{name}" for package in PACKAGES for name in sorted(_exported(tree, _path(tree, package)))]


def golden_names(tree: Tree) -> Iterator[Finding]:
    """Report public names that come or go without a change of tests/lint/public_names.txt."""
    text, names = tree.text(GOLDEN), public_names(tree)
    known = text.splitlines()
    for name in sorted(set(known) - set(names)):
        yield Finding(GOLDEN, line_of(text, f"{name}\n"), f"{name} is gone, on purpose: remove the line")
    for name in sorted(set(names) - set(known)):
        path = _path(tree, name.rpartition(".")[0])
        yield Finding(path, line_of(tree.text(path), "__all__"), f"{name} is new, on purpose: add it to {GOLDEN}")
    if set(known) == set(names) and known != names:
        yield Finding(GOLDEN, 0, "the order differs, write the file by python -m tests.lint.public_names")


def names_of_examples(tree: Tree) -> Iterator[Finding]:
    """Report names in the examples of a destination, a store and a capture that are not public."""
    public = set(public_names(tree))
    for path in EXAMPLES:
        module = tree.module(path)
        for node in module.nodes(ast.ImportFrom):
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                if name.split(".")[0] == "levada" and name not in public:
                    yield Finding(path, node.lineno, f"{name} is not public, use a name of {GOLDEN}")
        for plain in module.nodes(ast.Import):
            if any(alias.name.split(".")[0] == "levada" for alias in plain.names):
                yield Finding(path, plain.lineno, "import the public names from levada's packages")


def _path(tree: Tree, package: str) -> str:
    path = f"engine/{package.replace('.', '/')}"
    return f"{path}/__init__.py" if tree.has(path) else f"{path}.py"


def _exported(tree: Tree, path: str) -> list[str]:
    for node in tree.module(path).tree.body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]:
            return list(ast.literal_eval(node.value))
    return []


if __name__ == "__main__":
    print("\n".join(public_names(Tree(ROOT))))
