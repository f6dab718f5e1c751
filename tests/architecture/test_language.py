"""Docstrings, messages and docs are in the plain English of the field."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.architecture.language import ROOT, WORDS_OUT, breaks, code_files, docstrings, files_of_tests, messages, prose

PROSE = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "benchmarks/README.md",
    "charts",
    "crds",
    "docs",
    "tests/cluster/README.md",
)
"""Folders and files of docs and descriptions."""


def relative(file: Path) -> str:
    """Return the path within the project."""
    return str(file.relative_to(ROOT))


def prose_files() -> Iterator[Path]:
    """Yield the files of docs and descriptions."""
    for name in PROSE:
        path = ROOT / name
        files = [path] if path.is_file() else sorted(path.rglob("*"))
        yield from (file for file in files if file.suffix in (".md", ".yaml", ".txt", ".json", ".tpl"))


@pytest.mark.parametrize("file", code_files(), ids=relative)
def test_docstrings_and_messages(file: Path) -> None:
    """No docstring has a word that is out, a semicolon, or a question word as its first. No message has such a word."""
    found = [f"line {d.line}: {rule}: {d.text}" for d in docstrings(file) for rule in breaks(d)]
    found += [f"line {line}: {text}" for line, text in messages(file) if WORDS_OUT.search(prose(text))]
    assert not found, "\n".join(found)


def test_docstrings_of_tests() -> None:
    """No docstring of the tests, the benchmarks and the examples breaks a rule that holds for the code's."""
    found = [
        f"{relative(d.file)}:{d.line}: {rule}"
        for file in files_of_tests()
        for d in docstrings(file)
        for rule in breaks(d)
    ]
    assert not found


@pytest.mark.parametrize("file", list(prose_files()), ids=relative)
def test_docs(file: Path) -> None:
    """No doc and no description in a CRD or chart has a word that is out."""
    lines = enumerate(file.read_text().splitlines(), 1)
    found = [f"line {number}: {line}" for number, line in lines if WORDS_OUT.search(prose(line))]
    assert not found, "\n".join(found)
