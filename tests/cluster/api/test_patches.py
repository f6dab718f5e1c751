"""`kubectl patch` of every field once: what its change class says happens, and nothing else."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args

import pytest
from tests.cluster.api.conftest import Operator
from tests.cluster.kubectl import Kubectl, eventually
from tests.operator.samples import spec

from levada.spec import Change, PipelineSpec
from levada.spec.model import CHANGE, Model
from levada_operator.names import RESTART_ON

BASES: dict[str, dict[str, Any]] = {
    "lake": {
        "source": {"tls": {"caSecretRef": {"name": "ca", "key": "ca.crt"}}},
        "destination": {"iceberg": {"catalog": {"warehouse": "s3://lake/wh"}}},
        "staging": {"uri": "s3://lake/staging"},
    },
    "own": {
        "destination": {"iceberg": None, "custom": {"type": "http", "credentialsSecretRef": {"name": "http"}}},
        "staging": {"volumeClaim": {"size": "1Gi"}},
    },
}
"""Pipelines that have every field between them; each field is patched in the first that has it."""

PATCHES: dict[str, Any] = {
    "suspend": True,
    "source.host": "other.pg.svc",
    "source.port": 5433,
    "source.database": "other",
    "source.credentialsSecretRef.name": "other-cdc",
    "source.tls.mode": "VerifyCA",
    "source.tls.caSecretRef.name": "other-ca",
    "source.tls.caSecretRef.key": "other.crt",
    "source.slot.name": "other_slot",
    "source.slot.failover": True,
    "source.slot.onLost": "Resync",
    "source.publication.name": "other_publication",
    "source.publication.management": "External",
    "source.heartbeatSeconds": 30,
    "tables.include": [{"schema": "public", "name": "o*"}],
    "tables.exclude": [{"schema": "public", "name": "tmp_*"}],
    "copy.maxConcurrentTables": 2,
    "copy.connectionsPerTable": 2,
    "batch.maxFillMs": 500,
    "batch.maxBytes": "32Mi",
    "freshnessSeconds": 30,
    "onSchemaChange": "Fail",
    "onUnrepresentable": "Text",
    "destination.iceberg.catalog.type": "Hive",
    "destination.iceberg.catalog.uri": "https://other.data.svc",
    "destination.iceberg.catalog.warehouse": "s3://other",
    "destination.iceberg.catalog.properties": {"s3.endpoint": "https://s3.data.svc"},
    "destination.iceberg.namespace": "other",
    "destination.iceberg.mode": "Changelog",
    "destination.iceberg.credentialsSecretRef.name": "other-s3",
    "destination.iceberg.maintenance.compactEverySeconds": 1800,
    "destination.iceberg.maintenance.expireSnapshotsAfterHours": 48,
    "destination.custom.type": "other",
    "destination.custom.options": {"url": "https://other"},
    "destination.custom.credentialsSecretRef.name": "other-http",
    "staging.uri": "s3://other/staging",
    "staging.volumeClaim.size": "2Gi",
    "staging.volumeClaim.storageClassName": "other",
    "store.postgres.schema": "other",
    "retries.maxAttempts": 9,
    "retries.delaySeconds": 20,
    "retries.maxDelaySeconds": 900,
    "health.progressDeadlineSeconds": 600,
    "health.lagProbeSeconds": 60,
    "driver.mode": "Cluster",
    "driver.image": "levada:other",
    "driver.resources.requests": {"cpu": "2"},
    "driver.resources.limits": {"memory": "8Gi"},
    "driver.sparkConf": {"spark.sql.session.timeZone": "UTC"},
    "driver.podTemplate": {"metadata": {"annotations": {"team": "data"}}},
    "executor.instances.min": 1,
    "executor.instances.max": 8,
    "executor.resources.requests": {"cpu": "1"},
    "executor.resources.limits": {"memory": "4Gi"},
    "executor.podTemplate": {"metadata": {"annotations": {"team": "data"}}},
    "deletionPolicy.slot": "Retain",
    "deletionPolicy.state": "Retain",
    "deletionPolicy.publication": "Delete",
    "deletionPolicy.destinationTables": "Delete",
    "deletionPolicy.cleanupTimeoutSeconds": 120,
}


@dataclass(frozen=True)
class Drivers:
    """What the operator made of the Pipelines of `BASES`."""

    kubectl: Kubectl

    def template(self, base: str) -> str:
        """Return what a pod is replaced for."""
        template = self.kubectl.get("statefulset", f"{base}-driver")["spec"]["template"]
        return str(template["metadata"]["annotations"][RESTART_ON])

    def told(self, base: str, words: str) -> bool:
        """Tell whether an Event of the Pipeline has the words."""
        return any(
            e["reason"] == "SpecChanged" and e["involvedObject"]["name"] == base and words in e["message"]
            for e in self.kubectl.get("events")
        )


@pytest.fixture(scope="module")
def drivers(cluster: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drivers]:
    """The Pipelines, accepted by an operator that runs."""
    namespace = f"levada-{uuid.uuid4().hex[:8]}"
    kubectl = Kubectl(namespace)
    cluster("create", "namespace", namespace)
    operator = Operator(namespace, tmp_path_factory.mktemp("patches") / "operator.log")
    operator.start()
    for name, changes in BASES.items():
        body = {"apiVersion": "levada.dev/v1alpha1", "kind": "Pipeline", "metadata": {"name": name}}
        kubectl.apply({**body, "spec": spec(**changes)})
        eventually(lambda name=name: kubectl.get("statefulset", f"{name}-driver"))  # type: ignore[misc]  # bound on purpose
    yield Drivers(kubectl)
    operator.stop()
    print(operator.log.read_text())
    for name in BASES:
        kubectl.patch("pipeline", name, {"metadata": {"finalizers": None}})
    cluster("delete", "namespace", namespace, "--wait=false")


def fields(model: type[Model], prefix: str = "") -> Iterator[tuple[str, Change]]:
    """Yield every field that has a value of its own, with its class."""
    for name, field in model.model_fields.items():
        path = f"{prefix}{field.alias or name}"
        inner = [t for t in (get_args(field.annotation) or (field.annotation,)) if _is_model(t)]
        if inner and path not in PATCHES:
            yield from fields(inner[0], f"{path}.")
        else:
            assert isinstance(field.json_schema_extra, dict)
            yield path, Change(str(field.json_schema_extra[CHANGE]))


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Model)


CLASSES = dict(fields(PipelineSpec))
CLAIM = "staging.volumeClaim.size"


def test_every_field_is_patched() -> None:
    """There is a patch for each field of the models, and for no other."""
    assert PATCHES.keys() == CLASSES.keys()


@pytest.mark.parametrize("path", [p for p, c in CLASSES.items() if c is not Change.IMMUTABLE and p != CLAIM])
def test_patch_does_what_its_class_says(drivers: Drivers, path: str) -> None:
    """The Event names the class and the field; the driver's pod is replaced unless the class is Hot."""
    base, change = _base(path), CLASSES[path]
    before = drivers.template(base)
    drivers.kubectl.patch("pipeline", base, _patch(path))
    eventually(lambda: drivers.told(base, f"{change.value}: spec.{path}"))
    assert (drivers.template(base) == before) is (change is Change.HOT)


@pytest.mark.parametrize("path", [p for p, c in CLASSES.items() if c is Change.IMMUTABLE])
def test_immutable_field_is_refused(drivers: Drivers, path: str) -> None:
    """The API server refuses the patch, and names the field."""
    done = drivers.kubectl.run(
        "patch", "pipeline", _base(path), "--type=merge", "-p", json.dumps(_patch(path)), check=False
    )
    assert done.returncode != 0
    assert f"spec.{path} is Immutable" in done.stderr


def test_claim_that_may_not_grow_is_told(drivers: Drivers) -> None:
    """The cluster's own refusal is the Pipeline's: here no volume stands behind the claim. Set back, all is well."""
    drivers.kubectl.patch("pipeline", "own", _patch(CLAIM))
    eventually(lambda: _driver_available(drivers.kubectl) == "RefusedByCluster")
    drivers.kubectl.patch("pipeline", "own", {"spec": {"staging": {"volumeClaim": {"size": "1Gi"}}}})
    eventually(lambda: _driver_available(drivers.kubectl) != "RefusedByCluster")


def _driver_available(kubectl: Kubectl) -> str:
    conditions = kubectl.get("pipeline", "own").get("status", {}).get("conditions", ())
    return next((str(c["reason"]) for c in conditions if c["type"] == "DriverAvailable"), "")


def _base(path: str) -> str:
    return "own" if path.startswith(("destination.custom", "staging.volumeClaim")) else "lake"


def _patch(path: str) -> dict[str, Any]:
    patch: Any = PATCHES[path]
    for name in reversed(path.split(".")):
        patch = {name: patch}
    return {"spec": patch}
