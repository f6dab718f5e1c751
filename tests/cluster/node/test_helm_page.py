"""The page of the chart and the chart's README: each command, on a cluster where Levada was never installed."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from tests.cluster.bringup.images import builder, ensure_image
from tests.cluster.bringup.layout import Layout
from tests.cluster.bringup.node import enter
from tests.cluster.kubectl import Kubectl, established
from tests.cluster.node.installed import NAMESPACE, removed
from tests.cluster.node.pages import environment
from tests.cluster.node.place import new_place
from tests.cluster.node.replica import REPLICA, replica
from tests.docs.pages import blocks_of, parts_of, run_page
from tests.operator.samples import merge

pytestmark = pytest.mark.nightly

ROOT: Final = Path(__file__).parents[3]
PAGE: Final = ROOT / "docs" / "helm.md"
README: Final = ROOT / "charts" / "levada" / "README.md"
REGISTRY: Final = "registry.example"
INSTALL: Final = "helm install levada charts/levada --namespace levada-system"
AGAIN: Final = """
kubectl -n levada-system rollout status deployment/levada-operator --timeout=180s
helm uninstall levada --namespace levada-system --wait
"""
KINDS: Final = {"ServiceMonitor": "servicemonitors", "PrometheusRule": "prometheusrules"}


@pytest.fixture
def images(layout: Layout, image: str) -> None:
    """The images on the node, under the names that they have on the page. They need no registry then."""
    for name, loaded in {
        "levada:0.1.0": image,
        "levada:0.2.0": image,
        "levada-operator:0.1.0": ensure_image(layout, "operator"),
    }.items():
        tag = enter(layout, "ctr", "-n", "k8s.io", "images", "tag", "--force", loaded, f"{REGISTRY}/{name}")
        subprocess.run(tag, check=True, stdout=subprocess.DEVNULL)


@pytest.fixture
def never_installed(cluster: Kubectl) -> Iterator[Kubectl]:
    """A cluster without the operator, its CRDs and all of their objects. It has the CRDs again afterwards."""
    with removed(cluster):
        yield cluster


@pytest.fixture
def kinds_of_prometheus(cluster: Kubectl) -> Iterator[None]:
    """The kinds of the Prometheus operator, which take any fields."""
    group = "monitoring.coreos.com"
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    names = [f"{plural}.{group}" for plural in KINDS.values()]
    for (kind, plural), name in zip(KINDS.items(), names, strict=True):
        spec = {
            "group": group,
            "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
            "scope": "Namespaced",
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        }
        body = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}
        cluster.apply({**body, "metadata": {"name": name}, "spec": spec})
    established(cluster, "crd", *names)
    yield
    cluster("delete", "crd", *names)


def part_with(field: str) -> dict[str, Any]:
    """Return the part of the page that has a field, written as its path."""
    for part in parts_of(PAGE):
        value: Any = part
        for name in field.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None:
            return part
    raise AssertionError(f"{PAGE} has no part with {field}")


def test_each_command_of_the_page_works(
    images: None, never_installed: Kubectl, kinds_of_prometheus: None, layout: Layout, tmp_path: Path
) -> None:
    """From the image to nothing left. Each way to install works, a Pipeline gets a token, an upgrade and a restart."""
    cluster = never_installed
    (command,) = (block.code for block in blocks_of(README))
    (tmp_path / "metrics.yaml").write_text(yaml.safe_dump(part_with("metrics.serviceMonitor")))
    with new_place(layout, cluster, name="data") as place:
        place.execute(f"CREATE DATABASE {REPLICA}")
        driver = merge(part_with("driver.podTemplate"), part_with("driver.serviceAccount"))
        (tmp_path / "pipeline.json").write_text(json.dumps(place.manifest(**{**replica(), **driver})))
        usual = f"--set image.repository={REGISTRY}/levada"
        here = {
            "docker push": "echo the node has",
            f"{INSTALL} --create-namespace \\\n  {usual}\nhelm test": (
                f"{AGAIN}{INSTALL} --create-namespace \\\n  {usual}\nhelm test"
            ),
            f"{INSTALL} --set 'watchNamespaces={{data,shop}}' ...": (
                f"{AGAIN}{INSTALL} --set 'watchNamespaces={{data,shop}}' {usual}\n"
                "kubectl -n shop get role levada-operator\n! kubectl get clusterrole levada-operator"
            ),
            f"{INSTALL} --set assignedUser=true ...": (
                f"{AGAIN}{INSTALL} --set assignedUser=true {usual}\n{AGAIN}{command}"
            ),
            "token=$(openssl": f"{pipeline(tmp_path)}{monitored(tmp_path)}token=$(openssl",
            'kubectl -n data patch pipeline shop --type merge -p \'{"spec": {"driver"': (
                'restarts kubectl -n data patch pipeline shop --type merge -p \'{"spec": {"driver"'
            ),
            "helm upgrade levada charts/levada --namespace": "restarts helm upgrade levada charts/levada --namespace",
            "kubectl patch pipeline": "restarts kubectl patch pipeline",
        }
        try:
            for namespace in ("shop", "monitoring"):
                cluster("create", "namespace", namespace)
            reader = {**environment(place, tmp_path), "MAKEFLAGS": "--environment-overrides", "IMAGE_BUILD": builder()}
            run_page(PAGE, ROOT, reader, notes=tmp_path, adapted=here)
            printed = (tmp_path / "output").read_text()
            assert place.slot() is None
        finally:
            place.print_state()
            cluster("delete", "namespace", "shop", "monitoring", "--wait=false")
    assert re.search(r"TEST SUITE: +levada-test\n(?:Last.*\n)+Phase: +Succeeded", printed)
    assert f"data        shop-driver-0   {REGISTRY}/levada:0.2.0" in printed
    assert cluster.get("crd", "pipelines.levada.dev") is None
    assert Kubectl(NAMESPACE).get("deployments") == []


def pipeline(folder: Path) -> str:
    """Return the commands that make the Pipeline with the parts of the page."""
    login = "--docker-server=registry.example --docker-username=reader --docker-password=any"
    return f"""
kubectl create secret docker-registry registry {login}
kubectl apply -f {folder}/pipeline.json
kubectl wait --for=condition=Ready pipeline/shop --timeout=300s
kubectl get pod shop-driver-0 -o 'jsonpath={{.spec.imagePullSecrets[0].name}}' | grep registry
kubectl get serviceaccount shop-driver -o yaml | grep role/lake
"""


def monitored(folder: Path) -> str:
    """Return the commands that set the values of the page about metrics."""
    return f"""
helm upgrade levada charts/levada -n levada-system --reuse-values -f {folder}/metrics.yaml
kubectl -n levada-system get configmap/levada-dashboard servicemonitor/levada-operator servicemonitor/levada-drivers
kubectl -n levada-system get prometheusrule levada -o yaml | grep 'levada_slot_retained_bytes > 50 '
"""
