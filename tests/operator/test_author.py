"""The author of a Pipeline reaches what the author of a pod in that namespace does, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.operator.samples import merge, owner

from levada.spec import PipelineManifest
from levada.spec.schema import structural
from levada_operator.desired.jobs import build_cleanup_job, build_copy_job, build_lag_job
from levada_operator.desired.objects import build_objects

HOSTILE = {
    "apiVersion": "v1",
    "metadata": {"namespace": "kube-system", "name": "kube-apiserver", "labels": {"levada.dev/pipeline": "bank"},
                 "ownerReferences": [{"kind": "Pipeline", "uid": "uid-bank"}]},
    "spec": {
        "serviceAccountName": "admin",
        "serviceAccount": "admin",
        "automountServiceAccountToken": True,
        "enableServiceLinks": True,
        "securityContext": {"runAsNonRoot": False, "runAsUser": 0},
        "containers": [{"name": "driver", "command": ["sh"], "securityContext": {"privileged": True},
                        "envFrom": [{"secretRef": {"name": "other", "namespace": "bank"}}]}],
        "volumes": [{"name": "s", "secret": {"secretName": "other"}}],
    },
}  # fmt: skip
MODES: dict[str, dict[str, Any]] = {
    "local": {},
    "cluster": {"driver": {"mode": "Cluster"}, "executor": {"podTemplate": HOSTILE}},
    "store": {"store": {"configMap": {}}},
}
KINDS = {"ConfigMap", "Job", "NetworkPolicy", "PersistentVolumeClaim", "Role", "RoleBinding", "Service",
         "ServiceAccount", "StatefulSet"}  # fmt: skip


def bodies(template: dict[str, Any], mode: str) -> list[dict[str, Any]]:
    """Return all objects of a Pipeline with that pod template."""
    one = owner(**merge(MODES[mode], {"driver": {"podTemplate": template}}))
    jobs = [build_lag_job(one, 1), build_copy_job(one, "s", "t", "o"), build_cleanup_job(one)]
    return [*build_objects(one, running=True), *jobs]


@pytest.mark.parametrize("mode", MODES)
def test_no_template_changes_whose_objects_are(mode: str) -> None:
    """Every object is of a closed list of kinds, in the Pipeline's namespace, and owned by it alone."""
    for body in bodies(HOSTILE, mode):
        assert body["kind"] in KINDS
        assert body["metadata"]["namespace"] == "data"
        assert body["metadata"]["labels"]["levada.dev/pipeline"] == "shop"
        assert {o["uid"] for o in body["metadata"].get("ownerReferences", ())} <= {"uid-shop"}


@pytest.mark.parametrize("mode", MODES)
def test_no_template_changes_rights(mode: str) -> None:
    """Roles, their subjects and accounts are the same with any template. A Role is over pods, or named objects."""
    of = ("Role", "RoleBinding", "ServiceAccount")
    assert [b for b in bodies(HOSTILE, mode) if b["kind"] in of] == [b for b in bodies({}, mode) if b["kind"] in of]
    for role in (b for b in bodies(HOSTILE, mode) if b["kind"] == "Role"):
        for rule in role["rules"]:
            assert set(rule["resources"]) <= {"pods", "configmaps", "namespaces", "pipelines/status"}
            assert rule["resources"] == ["pods"] or rule["resourceNames"]


@pytest.mark.parametrize("mode", MODES)
def test_the_account_and_the_entry_point_are_the_operators(mode: str) -> None:
    """The pod runs as the account that the spec names. Its token is mounted only where the driver needs one."""
    for body in bodies(HOSTILE, mode):
        if body["kind"] not in ("StatefulSet", "Job"):
            continue
        pod = body["spec"]["template"]["spec"]
        assert pod["serviceAccountName"] == "shop-driver"
        assert pod["automountServiceAccountToken"] is (mode != "local" or body["kind"] == "StatefulSet")
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert body["spec"]["template"]["metadata"]["labels"]["levada.dev/pipeline"] == "shop"


def test_a_reference_to_a_secret_has_no_namespace() -> None:
    """No reference to a Secret, an account or a volume claim in a Pipeline's schema has a field for a namespace."""
    found = [*_references(structural(PipelineManifest))]
    assert found
    for path, fields in found:
        assert "namespace" not in fields, path


def _references(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    for name, field in schema.get("properties", {}).items():
        here = f"{path}.{name}"
        if name.endswith("Ref") or name in ("serviceAccount", "volumeClaim"):
            yield here, field.get("properties", {})
        yield from _references(field, here)
        yield from _references(field.get("items", {}), here)
