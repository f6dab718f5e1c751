"""Measures of the project's English: docstrings, messages and docs, by the rules of CONTRIBUTING.md.

Run ``python -m tests.architecture.language`` for the shares of each package.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
CODE: Final = ("engine", "operator")
TESTS: Final = ("tests", "benchmarks", "examples")
WORDS_OUT: Final = re.compile(
    r"\b(tell|tells|told|telling|said|anew|mend|mends|mended|mending|beside|nobody|somebody|whoever|upkeep"
    r"|(?:is|are|was|were) to be)\b",
    re.IGNORECASE,
)
"""Words of a private dialect. Each has a plain word in its place: report, log, again, resolve, shadow copy, must be."""
RULES: Final = ("words that are out", "a semicolon", "an opening by What, Who, Which, How or Where")
_OPENINGS_OUT: Final = ("What", "Who", "Whose", "Which", "How", "Where")


@dataclass(frozen=True, slots=True)
class Docstring:
    """A docstring and where it stands. ``kind`` is module, class, function or attribute."""

    file: Path
    line: int
    kind: str
    text: str


def docstrings(file: Path) -> Iterator[Docstring]:
    """Yield the docstrings of a module, those of its classes, functions and attributes included."""
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree):
        for before, child in _statements(node):
            if not (isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)):
                continue
            if isinstance(child.value.value, str):
                kind = type(node).__name__.removesuffix("Def").removeprefix("Async").lower()
                kind = kind if before is None else "attribute"
                yield Docstring(file, child.lineno, kind, child.value.value)


def messages(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each string of several words that is no docstring."""
    tree = ast.parse(file.read_text())
    known = {
        id(child.value) for node in ast.walk(tree) for _, child in _statements(node) if isinstance(child, ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in known:
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


def code_files() -> list[Path]:
    """Return every module of the engine and the operator."""
    return _modules(CODE)


def files_of_tests() -> list[Path]:
    """Return every module of the tests, the benchmarks and the examples."""
    return _modules(TESTS)


def _modules(folders: tuple[str, ...]) -> list[Path]:
    return sorted(p for folder in folders for p in (ROOT / folder).rglob("*.py"))


def _statements(node: ast.AST) -> Iterator[tuple[ast.stmt | None, ast.stmt]]:
    """Yield the statements of a module, class or function that may be docstrings, each with the one before."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        before: ast.stmt | None = None
        for child in node.body:
            if before is None or isinstance(before, ast.Assign | ast.AnnAssign):
                yield before, child
            before = child


def main() -> None:
    """Print the shares of each package, of the code first and then of the tests."""
    by_package: dict[str, list[Docstring]] = {}
    for file in (*code_files(), *files_of_tests()):
        parts = file.relative_to(ROOT).parts
        package = "/".join(parts[:3] if parts[0] in CODE else parts[:2])
        by_package.setdefault(package, []).extend(docstrings(file))
    everything = [d for found in by_package.values() for d in found]
    for name, found in (("all", everything), *by_package.items()):
        figures = ", ".join(f"{share:.1%} {rule}" for rule, share in shares(found).items())
        print(f"{name}: {len(found)} docstrings; {figures}")


if __name__ == "__main__":
    main()
