"""Destinations are known by their entry points alone, and their settings cost nothing to import."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

from levada.spec import load_manifests
from levada.spec.plugins import own_sections

ROOT = Path(__file__).parents[2]
NAMES = sorted(e.name for e in distribution("levada").entry_points.select(group="levada.destinations"))
# A source and a store are PostgreSQL too, so the name says nothing about the destination.
TOLD = [name for name in NAMES if name != "postgres"]

ALLOWED = {
    # The names of loggers of libraries.
    "engine/levada/logs.py",
    # The file system of the staging area is PyIceberg's, which knows the properties of S3.
    "engine/levada/segments/staging.py",
    # The tables of a catalog in a source database have its name. Another pipeline may have made it.
    "engine/levada/postgres/written_tables.py",
    # A first manifest has a destination, which its reader replaces.
    "engine/levada/cli/new_manifest.py",
}
HEAVY = ("pyarrow", "numpy", "psycopg", "pyspark", "pyiceberg", "pandas", "fsspec", "kubernetes", "kopf")


def modules() -> list[Path]:
    """Every module that is no destination's own."""
    own = {ROOT / "engine/levada/destinations" / name for name in NAMES}
    found = [p for root in ("engine", "operator") for p in sorted((ROOT / root).rglob("*.py"))]
    return [p for p in found if not own & set(p.parents)]


def words(path: Path) -> set[str]:
    """The identifiers and strings of a module, except for docstrings."""
    tree = ast.parse(path.read_text())
    docs = {
        id(e.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        for e in node.body
        if isinstance(e, ast.Expr) and isinstance(e.value, ast.Constant)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if id(node) not in docs:
                found.add(text)
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
                found.add(name)
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.alias(name=name):
                found.add(name)
            case ast.ImportFrom(module=str(name)):
                found.add(name)
    return found


def test_no_module_names_a_destination() -> None:
    """A destination's name is in its own package and in pyproject.toml."""
    assert NAMES
    pattern = re.compile("|".join(TOLD), re.IGNORECASE)
    naming = {str(p.relative_to(ROOT)) for p in modules() if any(pattern.search(w) for w in words(p))}
    assert naming <= ALLOWED
    assert naming == ALLOWED, "an exception that is not needed any more"


def test_each_destination_has_an_example() -> None:
    """The manifests of the examples are valid, and together they name each destination."""
    texts = {path: path.read_text() for path in (ROOT / "examples").glob("*/pipeline.yaml")}
    assert {load_manifests(t, str(p)).pipeline.spec.destination.type for p, t in texts.items()} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_settings_say_whether_spark_is_used(name: str) -> None:
    """The settings, which the operator imports alone, say the same about Spark as the destination's capabilities."""
    (point,) = distribution("levada").entry_points.select(group="levada.destinations", name=name)
    assert own_sections("levada.destinations")[name].spark is point.load().capabilities.spark


@pytest.mark.parametrize(
    "module",
    [
        "levada.spec.manifests",
        "levada.spec.schema",
        "levada.destinations",
        *(f"levada.destinations.{name}" for name in NAMES),
        *(f"levada.destinations.{name}.settings" for name in NAMES),
        "levada_operator.desired.objects",
        "levada_operator.decide.acceptance",
    ],
)
def test_settings_are_light(module: str) -> None:
    """The manifest's models import no driver, no Arrow and no Spark. Each module can be the first one imported."""
    code = f"import sys, {module}; print(*(m for m in {HEAVY!r} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
