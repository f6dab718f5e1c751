"""The manifests of the examples that need servers which no test has."""

from __future__ import annotations

from pathlib import Path

import pytest

from levada.spec.manifests import load_manifests

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", ["bigquery"])
def test_a_manifest_is_valid(name: str) -> None:
    """The manifest of a destination's example is valid, and names the destination."""
    manifests = load_manifests((EXAMPLES / name / "pipeline.yaml").read_text(), name)
    assert manifests.pipeline.spec.destination.type == name
