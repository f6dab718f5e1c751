"""The page of the operator: each of its commands, at the moment for which it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cluster.node.pages import environment, opened, waiting
from tests.cluster.node.place import Place
from tests.cluster.node.replica import REPLICA, equal, replica
from tests.docs.pages import run_page

pytestmark = pytest.mark.nightly

PAGE = Path(__file__).parents[3] / "docs" / "operator.md"
AGAIN = """
kubectl delete pipeline shop
kubectl apply -f pipeline.json
until kubectl describe pipeline shop | grep -q PreflightFailed; do sleep 1; done
"""
"""A user's steps between two commands of the page: the Pipeline is made again, and another one has its slot."""


def test_each_command_of_the_page_works(place: Place, tmp_path: Path) -> None:
    """A change is approved, a Pipeline goes without its clean-up, and the next one takes over from it."""
    place.execute(f"CREATE DATABASE {REPLICA}")
    place.apply(**replica(), approval="Manual")
    place.ready()
    place.patch(onUnrepresentable="Text")
    value = waiting(place).partition("levada.dev/approve=")[2]
    before = place.kubectl.get("pipeline", "shop")["metadata"]["uid"]
    manifest = place.manifest(**replica(), onUnrepresentable="Text")
    (tmp_path / "pipeline.json").write_text(json.dumps(manifest))
    here = {
        "kubectl annotate pipeline shop -n data --overwrite levada.dev/approve=8d0f3a5c41b2e697": (
            f"restarts kubectl annotate pipeline shop --overwrite levada.dev/approve={value}"
        ),
        "levada.dev/skip-cleanup=true\n": f"levada.dev/skip-cleanup=true\n{AGAIN}",
        "levada.dev/take-over-from=0c6f5a52-7e53-4a8e-8f5b-3f1f7c1e2a90": f"levada.dev/take-over-from={before}",
        **opened("kubectl port-forward pod/shop-driver-0 8080:8080", tmp_path),
    }
    run_page(PAGE, tmp_path, environment(place, tmp_path), adapted=here)
    assert place.told("CleanupAbandoned")
    place.ready()
    place.execute("UPDATE customers SET name = name || '#'")
    equal(place)
