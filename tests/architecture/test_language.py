"""Docstrings, messages and docs are in the plain English of the field."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.architecture.language import ROOT, WORDS_OUT, breaks, code_files, docstrings, messages, prose

CLEAN = (
    "README.md",
    "charts/levada/README.md",
    "charts/levada/files/dashboard.json",
    "charts/levada/templates",
    "charts/levada/values.schema.json",
    "charts/levada/values.yaml",
    "docs/cli.md",
    "docs/errors.md",
    "docs/helm.md",
    "docs/metrics.md",
    "docs/operator.md",
    "docs/reference.md",
    "docs/security.md",
    "engine/levada/__init__.py",
    "engine/levada/__main__.py",
    "engine/levada/apply",
    "engine/levada/capture",
    "engine/levada/cli",
    "engine/levada/copy",
    "engine/levada/destinations",
    "engine/levada/errors.py",
    "engine/levada/local",
    "engine/levada/locations.py",
    "engine/levada/owners.py",
    "engine/levada/pgoutput",
    "engine/levada/postgres",
    "engine/levada/printable.py",
    "engine/levada/private.py",
    "engine/levada/runtime/__init__.py",
    "engine/levada/runtime/config.py",
    "engine/levada/runtime/config_ref.py",
    "engine/levada/runtime/copies",
    "engine/levada/runtime/destination_errors.py",
    "engine/levada/runtime/host",
    "engine/levada/runtime/job.py",
    "engine/levada/runtime/pipeline.py",
    "engine/levada/runtime/progress.py",
    "engine/levada/runtime/report",
    "engine/levada/runtime/resources",
    "engine/levada/runtime/source",
    "engine/levada/runtime/stages",
    "engine/levada/runtime/supervisor.py",
    "engine/levada/runtime/tables",
    "engine/levada/schema",
    "engine/levada/segments",
    "engine/levada/spec",
    "engine/levada/stores",
    "engine/levada/values.py",
    "operator/levada_operator/__init__.py",
    "operator/levada_operator/__main__.py",
    "operator/levada_operator/act",
    "operator/levada_operator/app/__init__.py",
    "operator/levada_operator/app/config.py",
    "operator/levada_operator/app/controller.py",
    "operator/levada_operator/app/handlers.py",
    "operator/levada_operator/app/main.py",
    "operator/levada_operator/app/probes.py",
    "operator/levada_operator/app/queue.py",
    "operator/levada_operator/app/session.py",
    "operator/levada_operator/app/settings.py",
    "operator/levada_operator/app/sweeper.py",
    "operator/levada_operator/app/update_turns.py",
    "operator/levada_operator/crds",
    "operator/levada_operator/decide",
    "operator/levada_operator/desired",
    "operator/levada_operator/kube",
    "operator/levada_operator/names.py",
    "operator/levada_operator/observe",
)
"""Folders and files whose English was revised. A new one is added here."""


def relative(file: Path) -> str:
    """Return the path within the project."""
    return str(file.relative_to(ROOT))


def clean(*suffixes: str) -> Iterator[Path]:
    """Yield the files of the revised folders."""
    for name in CLEAN:
        path = ROOT / name
        files = [path] if path.is_file() else sorted(path.rglob("*"))
        yield from (file for file in files if file.suffix in suffixes)


@pytest.mark.parametrize("file", [f for f in code_files() if f in set(clean(".py"))], ids=relative)
def test_docstrings_and_messages(file: Path) -> None:
    """No docstring has a word that is out, a semicolon, or a question word as its first. No message has such a word."""
    found = [f"line {d.line}: {rule}: {d.text}" for d in docstrings(file) for rule in breaks(d)]
    found += [f"line {line}: {text}" for line, text in messages(file) if WORDS_OUT.search(prose(text))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("file", list(clean(".md", ".yaml", ".txt", ".json", ".tpl")), ids=relative)
def test_docs(file: Path) -> None:
    """No doc and no description in a CRD or chart has a word that is out."""
    lines = enumerate(file.read_text().splitlines(), 1)
    found = [f"line {number}: {line}" for number, line in lines if WORDS_OUT.search(prose(line))]
    assert not found, "\n".join(found)
