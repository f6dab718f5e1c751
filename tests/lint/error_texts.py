"""The texts of all errors are read by people and searched for: none comes, goes or changes unnoticed.

After a change on purpose: ``python -m tests.lint.error_texts > tests/lint/error_texts.txt``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from tests.lint.errors import PROBLEMS, Catalogue, literals
from tests.lint.tree import ROOT, Finding, Tree, line_of

GOLDEN: Final = "tests/lint/error_texts.txt"
_VALUE: Final = "{}"
"""A part of a text that the code computes."""


def error_texts(tree: Tree) -> Iterator[Finding]:
    """Report texts of errors that come, go or change without a change of tests/lint/error_texts.txt."""
    golden = tree.text(GOLDEN) if tree.has(GOLDEN) else ""
    texts, known = dict(_texts(tree)), golden.splitlines()
    for line in sorted(set(known) - texts.keys()):
        yield Finding(GOLDEN, line_of(golden, line), f"no error has this text, on purpose: {_write()}")
    for line in sorted(texts.keys() - set(known)):
        yield Finding(*texts[line], f"the text of the error is new, on purpose: {_write()}")


def _write() -> str:
    return f"python -m tests.lint.error_texts > {GOLDEN}"


def _texts(tree: Tree) -> Iterator[tuple[str, tuple[str, int]]]:
    """Yield the class, code, message and hint of each error in the sources, as one line, with its place."""
    catalogue = Catalogue(tree)
    for path in catalogue.paths:
        for called, node in catalogue.calls(path):
            if called not in catalogue.errors | PROBLEMS:
                continue
            given = node.args[1:] if called in PROBLEMS else node.args
            named = {keyword.arg: keyword.value for keyword in node.keywords}
            parts = [*given, *(named[name] for name in ("code", "message", "hint") if name in named)]
            if parts and (codes := list(literals(parts[0]))):
                words = " | ".join([called, " or ".join(codes), *map(_text, parts[1:])])
                yield words.replace("\n", "\\n"), (path, node.lineno)


def _text(node: ast.expr) -> str:
    """Return the text that an expression makes, as far as it shows it itself."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_text, node.values))
    if isinstance(node, ast.IfExp):
        return f"{_text(node.body)} or {_text(node.orelse)}"
    if isinstance(node, ast.BinOp):
        return _text(node.left) + _text(node.right)
    return _VALUE


if __name__ == "__main__":
    print("\n".join(sorted(dict(_texts(Tree(ROOT))))))
