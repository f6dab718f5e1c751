"""Measures of the project's English: docstrings, messages and docs, by the rules of CONTRIBUTING.md.

Run ``python -m tests.lint.language`` for the shares of each package.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tests.lint.tree import ROOT, Body, Finding, Module, Tree

CODE: Final = ("engine", "operator")
TESTS: Final = ("tests", "benchmarks", "examples")
WORDS_OUT: Final = re.compile(
    r"\b(tell|tells|told|telling|said|anew|mend|mends|mended|mending|beside|nobody|somebody|whoever|upkeep"
    r"|(?:is|are|was|were) to be)\b",
    re.IGNORECASE,
)
"""Words of a private dialect. Each has a plain word in its place: report, log, again, resolve, shadow copy, must be."""
RULES: Final = ("words that are out", "a semicolon", "an opening by What, Who, Which, How or Where")
PROSE: Final = ("CHANGELOG.md", "CONTRIBUTING.md", "README.md", "benchmarks/README.md", "tests/cluster/README.md")
PROSE_FOLDERS: Final = ("charts", "crds", "docs")
"""Files and folders of docs and descriptions."""
_OPENINGS_OUT: Final = ("What", "Who", "Whose", "Which", "How", "Where")
_DESCRIPTIONS: Final = (".md", ".yaml", ".txt", ".json", ".tpl")


@dataclass(frozen=True, slots=True)
class Docstring:
    """A docstring and where it stands. ``kind`` is module, class, function or attribute."""

    line: int
    kind: str
    text: str


def language_of_code(tree: Tree) -> Iterator[Finding]:
    """Report docstrings and messages of the engine and the operator that are not in plain English."""
    for path in tree.below(*CODE):
        yield from _docstrings(tree, path)
        for line, text in messages(tree.module(path)):
            if found := WORDS_OUT.search(prose(text)):
                yield Finding(path, line, f"a message has {found[0]!r}, see the words of CONTRIBUTING.md: {text}")


def language_of_tests(tree: Tree) -> Iterator[Finding]:
    """Report docstrings of tests, benchmarks and examples that are not in plain English."""
    for path in tree.below(*TESTS):
        yield from _docstrings(tree, path)


def language_of_docs(tree: Tree) -> Iterator[Finding]:
    """Report words that are out in the docs and in the descriptions of CRDs and of the chart."""
    for path in (*PROSE, *tree.below(*PROSE_FOLDERS, suffix=_DESCRIPTIONS)):
        for number, line in enumerate(tree.text(path).splitlines(), 1):
            if found := WORDS_OUT.search(prose(line)):
                yield Finding(path, number, f"{found[0]!r} is a word that is out, see CONTRIBUTING.md: {line.strip()}")


def docstrings(module: Module) -> Iterator[Docstring]:
    """Yield the docstrings of a module, those of its classes, functions and attributes included."""
    for node in module.bodies:
        for before, child in _statements(node):
            if not (isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)):
                continue
            if isinstance(child.value.value, str):
                kind = type(node).__name__.removesuffix("Def").removeprefix("Async").lower()
                kind = kind if before is None else "attribute"
                yield Docstring(child.lineno, kind, child.value.value)


def messages(module: Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each string of several words that is no docstring."""
    known = {id(child.value) for node in module.bodies for _, child in _statements(node) if isinstance(child, ast.Expr)}
    for node in module.nodes(ast.Constant):
        if isinstance(node.value, str) and id(node) not in known:
            text = node.value.strip()
            if " " in text:
                yield node.lineno, text


def breaks(docstring: Docstring) -> Iterator[str]:
    """Yield the names of the rules that a docstring breaks."""
    if WORDS_OUT.search(prose(docstring.text)):
        yield "words that are out"
    if ";" in prose(docstring.text):
        yield "a semicolon"
    if (docstring.text.split() or [""])[0].strip(",:") in _OPENINGS_OUT:
        yield "an opening by What, Who, Which, How or Where"


def shares(found: list[Docstring]) -> dict[str, float]:
    """Return the shares, from 0 to 1, of docstrings that break each rule."""
    counts = Counter(rule for docstring in found for rule in breaks(docstring))
    return {rule: counts[rule] / (len(found) or 1) for rule in RULES}


def prose(text: str) -> str:
    """Return a text without the code in it."""
    return re.sub(r"``[^`]*``|`[^`]*`", "", text)


def _docstrings(tree: Tree, path: str) -> Iterator[Finding]:
    for docstring in docstrings(tree.module(path)):
        for rule in breaks(docstring):
            first = docstring.text.strip().partition("\n")[0]
            yield Finding(path, docstring.line, f"a docstring has {rule}, see CONTRIBUTING.md: {first}")


def _statements(node: Body) -> Iterator[tuple[ast.stmt | None, ast.stmt]]:
    """Yield the statements of a module, class or function that may be docstrings, each with the one before."""
    before: ast.stmt | None = None
    for child in node.body:
        if before is None or isinstance(before, ast.Assign | ast.AnnAssign):
            yield before, child
        before = child


def main() -> None:
    """Print the shares of each package, of the code first and then of the tests."""
    by_package: dict[str, list[Docstring]] = {}
    tree = Tree(ROOT)
    for path in (*tree.below(*CODE), *tree.below(*TESTS)):
        parts = path.split("/")
        package = "/".join(parts[:3] if parts[0] in CODE else parts[:2])
        by_package.setdefault(package, []).extend(docstrings(tree.module(path)))
    everything = [d for found in by_package.values() for d in found]
    for name, found in (("all", everything), *by_package.items()):
        figures = ", ".join(f"{share:.1%} {rule}" for rule, share in shares(found).items())
        print(f"{name}: {len(found)} docstrings; {figures}")


if __name__ == "__main__":
    main()
