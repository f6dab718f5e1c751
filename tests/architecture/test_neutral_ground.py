"""The settings of destinations cost nothing to import, and each destination has an example."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

from levada.spec import load_manifests
from levada.spec.plugins import own_sections

ROOT = Path(__file__).parents[2]
NAMES = sorted(e.name for e in distribution("levada").entry_points.select(group="levada.destinations"))
HEAVY = ("pyarrow", "numpy", "psycopg", "pyspark", "pyiceberg", "pandas", "fsspec", "kubernetes", "kopf")


def test_each_destination_has_an_example() -> None:
    """The manifests of the examples are valid, and together they name each destination."""
    texts = {path: path.read_text() for path in (ROOT / "examples").glob("*/pipeline.yaml")}
    assert {load_manifests(t, str(p)).pipeline.spec.destination.type for p, t in texts.items()} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_settings_say_whether_spark_is_used(name: str) -> None:
    """The settings, which the operator imports alone, say the same about Spark as the destination's capabilities."""
    (point,) = distribution("levada").entry_points.select(group="levada.destinations", name=name)
    assert own_sections("levada.destinations")[name].spark is point.load().capabilities.spark


@pytest.mark.usefixtures("own_process")
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
