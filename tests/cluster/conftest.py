"""Fixtures of both tiers: the cluster that $KUBECONFIG names, and a namespace for each test."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.kubectl import Kubectl, established, eventually

from levada.local.jars import cache_folder, only_process

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def cluster() -> Kubectl:
    """The API server, with the CRDs."""
    if not os.environ.get("KUBECONFIG"):
        pytest.skip("no cluster: KUBECONFIG is not set")
    kubectl = Kubectl()
    answer = kubectl.run("get", "--raw=/readyz", check=False)
    if answer.returncode:
        pytest.skip(f"no cluster: {os.environ['KUBECONFIG']} does not answer: {answer.stderr.strip()[:200]}")
    # Several processes that each find none would all create them, and all but one fail.
    with only_process(cache_folder() / "tests" / "crds"):
        kubectl("apply", "-f", str(ROOT / "crds"))
    established(kubectl, "crd", "pipelines.levada.dev", "tablesyncs.levada.dev")
    eventually(lambda: not kubectl.run("get", "pipelines,tablesyncs", check=False).returncode)
    return kubectl


@pytest.fixture
def kubectl(cluster: Kubectl) -> Iterator[Kubectl]:
    """A namespace of the test's own that enforces the restricted Pod Security Standard."""
    mine = cluster.make_namespace(f"levada-{uuid.uuid4().hex[:8]}")
    yield mine
    mine.remove_namespace()
