"""The chart on a real API server: installed, upgraded, rolled back, removed. Its operator has the chart's rights alone.

No node is needed. The tests of running pods are in the tier with a node.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.chart.helm import CHART, run
from tests.cluster.kubectl import LIMIT_S, Kubectl, eventually
from tests.operator.samples import spec
from tests.rigs.late import OPERATOR

CRDS = ("pipelines.levada.dev", "tablesyncs.levada.dev")


@dataclass(frozen=True)
class Release:
    """A release of the chart in a namespace of its own."""

    name: str
    kubectl: Kubectl

    @property
    def operator(self) -> str:
        """The name of the operator's objects."""
        return f"{self.name}-levada-operator"

    def helm(self, *arguments: str | Path) -> str:
        return run(*arguments, "--namespace", self.kubectl.namespace).stdout

    def install(self, *options: str) -> None:
        # The CRDs were there before: applied by kubectl, or left by a release of another name.
        self.helm("install", self.name, CHART, "--take-ownership", "--force-conflicts", *options)

    def upgrade(self, *options: str) -> None:
        self.helm("upgrade", self.name, CHART, *options)

    def may(self, verb: str, resource: str, namespace: str = "") -> bool:
        """Ask the API server whether the operator's account has a right, in all namespaces unless one is given."""
        account = f"system:serviceaccount:{self.kubectl.namespace}:{self.operator}"
        place = ("-n", namespace) if namespace else ("-A",)
        # kubectl takes what is behind a slash for an object's name.
        resource, _, subresource = resource.partition("/")
        asked = ("auth", "can-i", verb, resource, f"--subresource={subresource}", f"--as={account}", *place)
        return Kubectl().run(*asked, check=False).stdout.strip() == "yes"

    def wait_for_rights(self, namespace: str = "") -> None:
        """Wait until the API server knows of the operator's roles. It reads them a moment after they are written."""
        eventually(lambda: self.may("watch", "pipelines", namespace))
        eventually(lambda: self.may("create", "leases", self.kubectl.namespace))

    def kubeconfig(self, folder: Path) -> Path:
        """Write a kubeconfig that logs in as the operator's account."""
        config = json.loads(self.kubectl("config", "view", "--raw", "--minify", "--flatten", "-o", "json"))
        config["users"][0]["user"] = {"token": self.kubectl("create", "token", self.operator).strip()}
        path = folder / "kubeconfig"
        path.write_text(yaml.safe_dump(config))
        return path


@pytest.fixture
def release(kubectl: Kubectl) -> Iterator[Release]:
    """Yield a release that is not installed yet. Its remains are removed afterwards, and the CRDs stay."""
    one = Release(f"r{uuid.uuid4().hex[:6]}", kubectl)
    yield one
    run("uninstall", one.name, "--namespace", kubectl.namespace, "--ignore-not-found")


@pytest.fixture
def account(kubectl: Kubectl) -> None:
    """Create a namespace's first account. Without a node there is no controller-manager that makes it."""
    kubectl.run("create", "serviceaccount", "default", check=False)


def pipeline(name: str) -> dict[str, Any]:
    """Return a Pipeline whose driver does all that the operator may have to allow."""
    wanted = spec(
        store={"configMap": {}},
        driver={"mode": "Cluster"},
        staging={"volumeClaim": {"size": "1Gi"}},
        source={"slot": {"name": f"slot_{uuid.uuid4().hex[:8]}"}},
    )
    return {"apiVersion": "levada.dev/v1alpha1", "kind": "Pipeline", "metadata": {"name": name}, "spec": wanted}


def serve(release: Release, folder: Path, *namespaces: str) -> subprocess.Popen[bytes]:
    """Start the operator as a process that has the release's account."""
    environment = os.environ | {
        "KUBECONFIG": str(release.kubeconfig(folder)),
        "LEVADA_NAMESPACES": ",".join(namespaces),
        "LEVADA_ADDRESS": "127.0.0.1",
        "LEVADA_PORT": "0",
        "LEVADA_SWEEP_SECONDS": "1",
        "POD_NAMESPACE": release.kubectl.namespace,
        "LEVADA_LEASE": release.operator,
    }
    with (folder / "operator.log").open("wb") as log:
        return subprocess.Popen([sys.executable, "-m", OPERATOR], env=environment, stdout=log, stderr=log)


def test_install_upgrade_rollback_uninstall(release: Release) -> None:
    """Each step has its effect. CRDs and Pipelines outlive the release, and it can be installed again."""
    kubectl = release.kubectl
    release.install()
    assert kubectl.get("deployment", release.operator)["spec"]["template"]["spec"]["containers"][0]["args"] == [
        "operator"
    ]
    kubectl.apply(pipeline("shop"))

    release.upgrade("--set", "image.tag=next", "--set", f"watchNamespaces={{{kubectl.namespace}}}")
    container = kubectl.get("deployment", release.operator)["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == "levada:next"
    assert {"name": "LEVADA_IMAGE", "value": "levada:next"} in container["env"]
    assert kubectl.get("clusterrole", release.operator) is None
    assert kubectl.get("role", release.operator) is not None

    release.helm("rollback", release.name, "1")
    assert kubectl.get("clusterrole", release.operator) is not None
    assert kubectl.get("role", release.operator) is None

    release.helm("uninstall", release.name)
    assert kubectl.get("deployment", release.operator) is None
    assert kubectl.get("clusterrole", release.operator) is None
    for crd in CRDS:
        assert kubectl.get("crd", crd)["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert kubectl.get("pipeline", "shop") is not None

    # Helm knows its own again by the release's name and namespace.
    release.helm("install", release.name, CHART)


def test_upgrade_after_the_operator_was_scaled(release: Release) -> None:
    """More replicas are a conflict, unless both agree, it is forced, or the client applies. None become the chart's."""
    release.install("--set", "crds.install=false")

    def upgrade(*options: str, check: bool = True) -> str:
        command = ("upgrade", release.name, CHART, "--namespace", release.kubectl.namespace, *options)
        return run(*command, "--set", "crds.install=false", check=check).stderr

    def replicas(scaled: int, *options: str) -> Any:
        release.kubectl("scale", "deployment", release.operator, f"--replicas={scaled}")
        upgrade(*options)
        return release.kubectl.get("deployment", release.operator)["spec"]["replicas"]

    assert replicas(0) == 1
    release.kubectl("scale", "deployment", release.operator, "--replicas=2")
    assert ".spec.replicas" in upgrade("--set", "image.tag=next", check=False)
    live = release.kubectl.get("deployment", release.operator)["spec"]
    assert (live["replicas"], "next" in str(live)) == (2, False)
    assert replicas(1) == 1
    assert replicas(2, "--set", "replicas=2") == 2
    assert replicas(3, "--force-conflicts") == 1
    assert replicas(2, "--server-side=false") == 1


def test_the_pod_of_a_test_that_succeeded_is_removed(release: Release) -> None:
    """`helm uninstall` leaves no pod then. The pod of a test that failed stays, for its log."""
    # On no node, so that only this test sets the phase of the pod.
    release.install("--set", "crds.install=false", "--set", "nodeSelector.kubernetes\\.io/hostname=nowhere")
    pod = f"{release.operator.removesuffix('-operator')}-test"
    assert "Phase:          Succeeded" in helm_test(release, pod, "Succeeded")
    eventually(lambda: release.kubectl.get("pod", pod) is None)
    assert "Phase:          Failed" in helm_test(release, pod, "Failed")
    assert release.kubectl.get("pod", pod) is not None


def helm_test(release: Release, pod: str, phase: str) -> str:
    """Return the output of ``helm test`` whose pod ends in this phase."""
    with ThreadPoolExecutor() as pool:
        command = ("test", release.name, "--namespace", release.kubectl.namespace, "--logs")
        done = pool.submit(run, *command, check=False)
        eventually(lambda: release.kubectl.get("pod", pod) is not None)
        release.kubectl.patch("pod", pod, {"status": {"phase": phase}}, "status")
        return done.result().stdout


def test_everything_on_is_accepted(release: Release) -> None:
    """With all that needs no kinds of others switched on, the API server takes every object as it is written."""
    on = ("podDisruptionBudget.enabled=true", "networkPolicy.enabled=true", "metrics.dashboard.enabled=true",
          "metrics.namespace=monitoring")  # fmt: skip
    release.install(*(part for value in on for part in ("--set", value)), "--dry-run=server")
    release.install(*(part for value in on for part in ("--set", value)))
    for kind in ("poddisruptionbudget", "networkpolicy"):
        assert release.kubectl.get(kind, release.operator) is not None


def test_rights_of_the_whole_cluster(release: Release) -> None:
    """The API server says so too: Pipelines everywhere, and no Secret, no shell, no role of the cluster anywhere."""
    release.install()
    release.wait_for_rights()
    for verb, resource in (("watch", "pipelines"), ("patch", "pipelines/status"), ("create", "statefulsets.apps")):
        assert release.may(verb, resource)
    for verb, resource in (
        ("get", "secrets"), ("list", "secrets"), ("watch", "secrets"), ("create", "secrets"), ("create", "pods/exec"),
        ("delete", "pipelines"), ("create", "pipelines"), ("list", "nodes"), ("delete", "statefulsets.apps"),
        ("create", "clusterroles"), ("escalate", "roles"), ("bind", "roles"), ("impersonate", "users"), ("*", "*"),
    ):  # fmt: skip
        assert not release.may(verb, resource), (verb, resource)


def test_rights_in_one_namespace(release: Release) -> None:
    """Elsewhere than in the namespaces named, the operator may do nothing at all."""
    here = release.kubectl.namespace
    release.install("--set", f"watchNamespaces={{{here}}}")
    release.wait_for_rights(here)
    assert not release.may("watch", "pipelines", "default")
    assert not release.may("list", "pods", "default")
    assert not release.may("list", "namespaces")
    assert not release.may("get", "secrets", here)


@pytest.mark.parametrize("everywhere", [True, False], ids=["cluster", "namespaced"])
def test_rights_suffice(release: Release, account: None, everywhere: bool, tmp_path: Path) -> None:
    """With the chart's rights and no others the operator makes all that a Pipeline needs, and removes it."""
    kubectl = release.kubectl
    namespaces = () if everywhere else (kubectl.namespace,)
    release.install(*(("--set", f"watchNamespaces={{{kubectl.namespace}}}") if namespaces else ()))
    release.wait_for_rights(*namespaces)
    process = serve(release, tmp_path, *namespaces)
    try:
        kubectl.apply(pipeline("shop"))
        for kind, name in (
            ("statefulset", "shop-driver"), ("service", "shop-driver"), ("role", "shop-driver"),
            ("rolebinding", "shop-driver"), ("networkpolicy", "shop-driver"), ("serviceaccount", "shop-executor"),
            ("configmap", "shop-manifest"), ("configmap", "shop-state"), ("persistentvolumeclaim", "shop-staging"),
        ):  # fmt: skip
            assert eventually(lambda kind=kind, name=name: kubectl.get(kind, name))  # type: ignore[misc]  # bound on purpose
        eventually(lambda: kubectl.get("pipeline", "shop").get("status", {}).get("phase"))
        kubectl.patch("pipeline", "shop", {"metadata": {"annotations": {"levada.dev/skip-cleanup": "true"}}})
        kubectl("delete", "pipeline", "shop", "--wait=false")
        eventually(lambda: kubectl.get("pipeline", "shop") is None)
    finally:
        process.terminate()
        process.wait(LIMIT_S)
    log = (tmp_path / "operator.log").read_text()
    print(log)
    # A namespace that another test leaves behind is refused, too, but not for a right that lacks.
    assert "cannot" not in log
    assert "Traceback" not in log
