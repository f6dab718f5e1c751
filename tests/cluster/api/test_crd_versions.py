"""Upgrades from one version of the CRDs to another, as in docs/guides/upgrades.md, on CRDs of a group of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from tests.cluster.kubectl import Kubectl, established, eventually

ROOT: Final = Path(__file__).parents[3]
CORPUS: Final = ROOT / "tests" / "spec" / "corpus" / "good"
GROUP: Final = "upgrades.levada.dev"


def definitions(*, versions: dict[str, bool], storage: str) -> list[dict[str, Any]]:
    """Return the CRDs with these versions, each served or not, all with today's schema."""
    found = []
    for path in sorted((ROOT / "crds").glob("*.yaml")):
        body = yaml.safe_load(path.read_text())
        today = body["spec"]["versions"][0]
        body["metadata"] = {"name": f"{body['spec']['names']['plural']}.{GROUP}"}
        # The short names belong to the real ones.
        body["spec"] |= {
            "group": GROUP,
            "names": {k: v for k, v in body["spec"]["names"].items() if k not in ("shortNames", "categories")},
            "versions": [
                {**today, "name": name, "served": served, "storage": name == storage}
                for name, served in versions.items()
            ],
        }
        found.append(body)
    return found


def manifests(version: str) -> list[dict[str, Any]]:
    """Return every good manifest, in the words of a version."""
    documents = [d for path in sorted(CORPUS.glob("*.yaml")) for d in yaml.safe_load_all(path.read_text()) if d]
    return [
        {**d, "apiVersion": f"{GROUP}/{version}", "metadata": {"name": f"m{number}"}}
        for number, d in enumerate(documents)
    ]


@pytest.fixture
def install(cluster: Kubectl) -> Iterator[Any]:
    """Apply the CRDs, and wait until they are served. They are removed at the end."""

    def apply(**arguments: Any) -> None:
        for body in definitions(**arguments):
            cluster.apply(body, options=("--server-side", "--force-conflicts"))
            established(cluster, f"crd/{body['metadata']['name']}")

    yield apply
    for body in definitions(versions={"v1alpha1": True}, storage="v1alpha1"):
        cluster.run("delete", "crd", body["metadata"]["name"], "--ignore-not-found", "--wait=false", check=False)


def resource(body: dict[str, Any], version: str) -> str:
    """Return what kubectl calls the kind of a manifest in a version."""
    return f"{body['kind'].lower()}s.{version}.{GROUP}"


def test_manifest_of_today_is_accepted_after_an_upgrade(kubectl: Kubectl, cluster: Kubectl, install: Any) -> None:
    """v1beta1 is added, objects move to it, and v1alpha1 ends: each object keeps its spec and its generation."""
    install(versions={"v1alpha1": True}, storage="v1alpha1")
    old, new = manifests("v1alpha1"), manifests("v1beta1")
    assert {body["kind"] for body in old} == {"Pipeline", "TableSync"}
    first = yaml.safe_dump(old[0])
    eventually(lambda: kubectl.run("create", "--dry-run=server", "-f", "-", stdin=first, check=False).returncode == 0)
    kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(old))
    before = [kubectl.get(resource(body, "v1alpha1"), body["metadata"]["name"]) for body in old]

    install(versions={"v1alpha1": True, "v1beta1": True}, storage="v1beta1")
    eventually(lambda: not kubectl.run("get", resource(new[0], "v1beta1"), "m0", check=False).returncode)
    kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(old))
    for body, was in zip(new, before, strict=True):
        now = kubectl.get(resource(body, "v1beta1"), body["metadata"]["name"])
        assert (now["spec"], now["metadata"]["generation"]) == (was["spec"], 1)

    # What was stored as v1alpha1 is written again as it is; then no object is left in the old version.
    for body in new:
        name = resource(body, "v1beta1")
        kubectl("replace", "-f", "-", stdin=kubectl("get", name, body["metadata"]["name"], "-o", "yaml"))
    for body in definitions(versions={"v1beta1": True}, storage="v1beta1"):
        stored = {"status": {"storedVersions": ["v1beta1"]}}
        cluster.patch("crd", body["metadata"]["name"], stored, "status")
    install(versions={"v1beta1": True}, storage="v1beta1")
    for body, was in zip(new, before, strict=True):
        now = kubectl.get(resource(body, "v1beta1"), body["metadata"]["name"])
        assert (now["spec"], now["metadata"]["generation"]) == (was["spec"], 1)
