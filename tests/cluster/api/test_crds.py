"""The API server accepts and refuses the same manifests as the models, and fills in the same defaults.

kubectl prints the columns of the CRDs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster.kubectl import Kubectl
from tests.operator.kstatus import kstatus
from tests.operator.samples import (
    error_document,
    progress,
    running,
    spec,
    table_document,
    table_sync,
)

from levada.spec import PipelineManifest, TableSyncManifest, parse_manifest
from levada_operator.decide.reconcile import reconcile

CORPUS = Path(__file__).parents[2] / "spec" / "corpus"
EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*/*.yaml"))
GOLDEN = Path(__file__).parent / "golden"

FILE_ONLY = {
    "cycle": "YAML that no JSON can say",
    "kinds": "kubectl itself refuses it",
    "no_pipeline": "documents of one file",
    "not_yaml": "kubectl itself refuses it",
    "pod_template": "the API server does not look into it; the operator does",
    "strangers": "documents of one file",
    "table_properties": "the API server does not know Iceberg's properties; the operator does",
    "table_transforms": "the API server does not compare transforms of one column; the operator does",
    "twice": "kubectl itself refuses it",
    "two_pipelines": "documents of one file",
    "unhashable": "YAML that no JSON can say",
}
"""Bad manifests that are wrong as files only. As objects they are right, or cannot exist."""


def documents(folder: str) -> list[Any]:
    """Return every document of a folder of the corpus."""
    found = []
    for path in sorted((CORPUS / folder).glob("*.yaml")):
        if path.stem not in FILE_ONLY:
            found += [
                pytest.param(d, id=f"{path.stem}-{i}") for i, d in enumerate(yaml.safe_load_all(path.read_text())) if d
            ]
    return found


def placed(body: dict[str, Any], kubectl: Kubectl) -> dict[str, Any]:
    """Return the object in the test's namespace."""
    return {**body, "metadata": {**body.get("metadata", {}), "namespace": kubectl.namespace}}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_example_is_taken(cluster: Kubectl, path: Path) -> None:
    """`kubectl apply` of each example's manifest finds nothing to object to."""
    cluster("apply", "--dry-run=server", "--validate=strict", "-f", str(path))


@pytest.mark.parametrize("body", documents("good"))
def test_good_manifest_is_taken_with_the_same_defaults(cluster: Kubectl, body: dict[str, Any]) -> None:
    """The object that the API server stores equals the file for the models, and lacks no default."""
    body = placed({k: v for k, v in body.items() if k != "status"}, cluster)
    for own in ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields"):
        body["metadata"].pop(own, None)
    model: Any = PipelineManifest if body["kind"] == "Pipeline" else TableSyncManifest
    stored = json.loads(cluster("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=json.dumps(body)))
    here, there = parse_manifest(model, body, "file"), parse_manifest(model, stored, "stored")
    assert here.spec == there.spec
    missing = list(absent(here.spec.model_dump(mode="json", by_alias=True, exclude_none=True), stored["spec"]))
    assert missing == []


def absent(wanted: Any, there: Any, path: str = "spec") -> list[str]:
    """Return the paths of fields that the models fill in and the API server does not."""
    if not isinstance(wanted, dict):
        return []
    if not isinstance(there, dict):
        return [path]
    return [
        p
        for key, value in wanted.items()
        for p in ([f"{path}.{key}"] if key not in there else absent(value, there[key], f"{path}.{key}"))
    ]


@pytest.mark.parametrize("body", documents("bad"))
def test_bad_manifest_is_refused(cluster: Kubectl, body: dict[str, Any]) -> None:
    """The API server refuses each manifest that the models refuse."""
    model: Any = PipelineManifest if body.get("kind") == "Pipeline" else TableSyncManifest
    try:
        parse_manifest(model, body, "file")
    except Exception:
        done = cluster.run(
            "create", "--dry-run=server", "-f", "-", stdin=json.dumps(placed(body, cluster)), check=False
        )
        assert done.returncode, "taken by the API server, and refused by the models"


@pytest.mark.parametrize("name", ["rules", "resources", "catalogs", "spark"])
def test_every_rule_says_what_the_models_say(cluster: Kubectl, name: str) -> None:
    """The corpus breaks each rule over several fields, and the API server's message is that of the models."""
    text = (CORPUS / "bad" / f"{name}.yaml").read_text()
    told = [line.split(": ", 2)[2] for line in text.splitlines() if line.startswith("# ")]
    answers = ""
    for body in yaml.safe_load_all(text):
        manifest = json.dumps(placed(body, cluster))
        answers += cluster.run("create", "--dry-run=server", "-f", "-", stdin=manifest, check=False).stderr
    assert [t for t in told if t not in answers] == []


IMMUTABLE: list[tuple[dict[str, Any], str]] = [
    ({"source": {"database": "other"}}, "spec.source.database"),
    ({"source": {"slot": {"name": "other"}}}, "spec.source.slot.name"),
    ({"destination": {"iceberg": None, "custom": {"type": "x"}}}, "spec.destination.iceberg"),
    ({"destination": {"iceberg": {"catalog": {"type": "Hadoop", "warehouse": "/x"}}}}, "catalog.type"),
    ({"staging": {"uri": "s3://other"}}, "spec.staging.uri"),
    ({"store": {"postgres": None, "memory": {}}}, "spec.store.postgres"),
    ({"store": {"postgres": {"schema": "other"}}}, "spec.store.postgres.schema"),
]


def shop(kubectl: Kubectl, **changes: Any) -> dict[str, Any]:
    """Return a small Pipeline for the test's namespace."""
    metadata = {"name": "shop", "namespace": kubectl.namespace}
    return {"apiVersion": "levada.dev/v1alpha1", "kind": "Pipeline", "metadata": metadata, "spec": spec(**changes)}


def test_immutable_fields_stay(kubectl: Kubectl) -> None:
    """A change of an Immutable field is refused, with its path. Any other is accepted."""
    kubectl.apply(shop(kubectl))
    for change, path in IMMUTABLE:
        done = kubectl.run("patch", "pipeline", "shop", "--type=merge", "-p", json.dumps({"spec": change}), check=False)
        assert "is Immutable: make a new Pipeline" in done.stderr, path
        assert path in done.stderr
    kubectl.patch("pipeline", "shop", {"spec": {"freshnessSeconds": 30, "source": {"host": "elsewhere"}}})
    tsync = placed(table_sync(), kubectl)
    tsync["metadata"] = {"name": "one", "namespace": kubectl.namespace}
    kubectl.apply(tsync)
    done = kubectl.run(
        "patch", "tsync", "one", "--type=merge", "-p", '{"spec":{"table":{"name":"other"}}}', check=False
    )
    assert "spec.table.name is Immutable: make a new TableSync" in done.stderr


def test_the_format_version_does_not_become_lower(kubectl: Kubectl) -> None:
    """The format version of Iceberg tables may go from 2 to 3, and not back."""
    kubectl.apply(shop(kubectl))
    kubectl.patch("pipeline", "shop", {"spec": {"destination": {"iceberg": {"formatVersion": 3}}}})
    change = {"spec": {"destination": {"iceberg": {"formatVersion": 2}}}}
    done = kubectl.run("patch", "pipeline", "shop", "--type=merge", "-p", json.dumps(change), check=False)
    assert "cannot go back to an older format version" in done.stderr


def test_unknown_field_is_refused(kubectl: Kubectl) -> None:
    """A misspelt field is an error to kubectl, not silence."""
    body = shop(kubectl, freshnessSecond=30)
    done = kubectl.run("apply", "-f", "-", stdin=json.dumps(body), check=False)
    assert "freshnessSecond" in done.stderr


def test_columns(kubectl: Kubectl) -> None:
    """kubectl get prints what the operator writes, as the golden files have it, normal and wide."""
    kubectl.apply(shop(kubectl))
    syncs = {name: placed(table_sync(name), kubectl) for name in ("orders", "events", "broken")}
    for body in syncs.values():
        body["metadata"] = {"name": body["metadata"]["name"], "namespace": kubectl.namespace}
        kubectl.apply(body)
    copying = {"rows": 88_000_000, "bytes": 5 << 30, "percent": 37.4, "secondsLeft": 3500.0}
    told = progress(
        table_document("broken", "Errored", error=error_document()),
        table_document("events", "DataSync", copy=copying, lagSeconds=None, appliedLsn=None),
        table_document(),
    )
    seen = running(*(table_sync(n) for n in syncs), report=told, moved_at=None)
    for write in reconcile(seen).statuses:
        kubectl.patch(write.key.kind.lower(), write.key.name, {"status": write.status}, "status")
    for kind in ("pipelines", "tablesyncs"):
        for options in ((), ("-o", "wide")):
            printed = without_age(kubectl("get", kind, *options))
            golden = GOLDEN / f"{kind}{'_wide' if options else ''}.txt"
            assert printed == golden.read_text(), f"{golden}:\n{printed}"
    selected = kubectl("get", "tsync", "--field-selector", "status.phase=Errored", "-o", "name")
    assert selected.split() == ["tablesync.levada.dev/shop-public-broken"]
    assert "shop-public-orders" in kubectl("get", "levada")
    assert kubectl("get", "pl", "-o", "name").split() == ["pipeline.levada.dev/shop"]


def without_age(printed: str) -> str:
    """Return what kubectl printed with every age of the same text, and no blanks at the ends."""
    header, *lines = printed.splitlines()
    at = header.index("AGE")
    lines = [(line[:at] + "0s ".ljust(3) + line[at + 3 :]).rstrip() for line in lines]
    return "\n".join([header.rstrip(), *lines]) + "\n"


def test_wrong_reason_is_refused(kubectl: Kubectl) -> None:
    """A reason that is not of the closed lists cannot be written at all."""
    kubectl.apply(shop(kubectl))
    condition = {"type": "Ready", "status": "True", "reason": "Whatever", "message": "",
                 "lastTransitionTime": "2026-01-31T12:00:00Z"}  # fmt: skip
    patch = json.dumps({"status": {"conditions": [condition]}})
    done = kubectl.run("patch", "pl", "shop", "--subresource=status", "--type=merge", "-p", patch, check=False)
    assert "Unsupported value" in done.stderr


def test_object_without_an_operator_is_in_progress(kubectl: Kubectl) -> None:
    """An object that no operator has seen has a status by which tools do not take it for ready."""
    kubectl.create(shop(kubectl))
    made = kubectl.get("pipeline", "shop")
    assert made["status"] == {"observedGeneration": -1}
    assert kstatus(made) == "InProgress"


def test_status_is_a_subresource(kubectl: Kubectl) -> None:
    """A write of the spec does not write the status."""
    kubectl.apply({**shop(kubectl), "status": {"phase": "Streaming"}})
    assert kubectl.get("pipeline", "shop")["status"] == {"observedGeneration": -1}, "the default"


def test_explain_has_a_word_on_a_field(cluster: Kubectl) -> None:
    """kubectl explain prints meaning and unit."""
    assert "Seconds by which" in cluster("explain", "pipeline.spec.freshnessSeconds")


def test_a_null_is_not_taken_for_the_default(kubectl: Kubectl) -> None:
    """`onUnrepresentable: Null` without quotes is null in YAML. It is refused, or kept for the operator to refuse."""
    body = {"apiVersion": "levada.dev/v1alpha1", "kind": "Pipeline", "metadata": {"name": "shop"},
            "spec": spec()}  # fmt: skip
    body["spec"]["onUnrepresentable"] = None
    made = kubectl.run("create", "-f", "-", stdin=json.dumps(body), check=False)
    if made.returncode:
        assert "onUnrepresentable" in made.stderr
    else:
        assert kubectl.get("pipeline", "shop")["spec"]["onUnrepresentable"] is None


def test_a_field_that_does_not_exist(kubectl: Kubectl) -> None:
    """It is refused by name. Without kubectl's validation it is dropped, and the rest is applied."""
    body = {"apiVersion": "levada.dev/v1alpha1", "kind": "Pipeline", "metadata": {"name": "shop"},
            "spec": spec() | {"freshnesSeconds": 5}}  # fmt: skip
    refused = kubectl.run("apply", "-f", "-", stdin=json.dumps(body), check=False)
    assert refused.returncode
    assert 'unknown field "spec.freshnesSeconds"' in refused.stderr
    kubectl("apply", "--validate=false", "-f", "-", stdin=json.dumps(body))
    found = kubectl.get("pipeline", "shop")["spec"]
    assert ("freshnesSeconds" in found, found["freshnessSeconds"]) == (False, 10)
