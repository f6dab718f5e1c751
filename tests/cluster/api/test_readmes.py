"""The READMEs of the examples for a cluster: an API server takes each command. What it would create is not created."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cluster.kubectl import Kubectl
from tests.docs.pages import run_page

ROOT = Path(__file__).parents[3]
WATCHES = {
    "cluster-mode": "get pods -l levada.dev/pipeline=shop --watch",
    "dedicated-copy": "get tablesync shop-events --watch",
}


@pytest.mark.parametrize("name", ["kubernetes", "cluster-mode", "dedicated-copy"])
def test_readme(kubectl: Kubectl, name: str, tmp_path: Path) -> None:
    """Each command works in the test's namespace, where a watch is one look."""
    here = {"-n data ": f"-n {kubectl.namespace} ", " apply -f ": " apply --dry-run=server -f "}
    if name in WATCHES:
        here[WATCHES[name]] = "get pods,tablesyncs"
    else:
        here["create namespace data"] = f"get namespace {kubectl.namespace}"
    run_page(ROOT / "examples" / name / "README.md", ROOT, {}, notes=tmp_path, adapted=here)
