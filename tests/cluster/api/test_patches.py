"""`kubectl patch` of every field once: what its change class says happens, and nothing else."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from tests.cluster.api.processes import Operator
from tests.cluster.fields import CLASSES, PATCHES, patch_of
from tests.cluster.kubectl import Kubectl, eventually
from tests.operator.samples import spec

from levada.spec import Change
from levada_operator.names import RESTART_ON

BASES: dict[str, dict[str, Any]] = {
    "lake": {
        "source": {"tls": {"caSecretRef": {"name": "ca", "key": "ca.crt"}, "certSecretRef": {"name": "certificate"}}},
        "destination": {"iceberg": {"catalog": {"warehouse": "s3://lake/wh"}}},
        "staging": {"uri": "s3://lake/staging"},
        "tables": {"maskKeySecretRef": {"name": "masks", "key": "key"}},
        "driver": {"tokenSecretRef": {"name": "driver-token", "key": "token"}},
        "executor": {"instances": {"max": 4}},
    },
    "own": {
        "destination": {"iceberg": None, "custom": {"type": "http", "credentialsSecretRef": {"name": "http"}}},
        "staging": {"volumeClaim": {"size": "1Gi"}},
    },
    "scratch": {"source": {"slot": {"name": "scratch"}}, "staging": {"scratch": True}},
    "bigquery": {
        "destination": {
            "iceberg": None,
            "bigquery": {
                "project": "a-project",
                "endpoint": {"rest": "https://rest.googleapis.com", "storage": "storage.googleapis.com:443"},
                "credentialsSecretRef": {"name": "account"},
            },
        },
    },
    "ducklake": {
        "destination": {
            "iceberg": None,
            "ducklake": {
                "catalog": {"host": "catalog", "database": "lake"},
                "dataPath": "s3://lake/data",
                "credentialsSecretRef": {"name": "catalog"},
            },
        },
    },
    "opensearch": {
        "destination": {
            "iceberg": None,
            "opensearch": {"urls": ["https://search:9200"], "credentialsSecretRef": {"name": "search"}},
        },
        "store": {"custom": {"type": "sqlite", "credentialsSecretRef": {"name": "store"}}},
    },
    "postgres": {
        "destination": {
            "iceberg": None,
            "postgres": {"host": "replica", "database": "replica", "credentialsSecretRef": {"name": "replica"}},
        },
        "store": {
            "postgres": {
                "connection": {
                    "host": "store",
                    "database": "store",
                    "credentialsSecretRef": {"name": "store"},
                    "tls": {"caSecretRef": {"name": "ca", "key": "ca.crt"}, "certSecretRef": {"name": "certificate"}},
                }
            }
        },
    },
}
"""Pipelines that together have every field. Each field is patched in the first one that has it."""


@dataclass(frozen=True)
class Drivers:
    """The operator's objects for the Pipelines of `BASES`."""

    kubectl: Kubectl

    def template(self, base: str) -> str:
        """Return what a pod is replaced for."""
        template = self.kubectl.get("statefulset", f"{base}-driver")["spec"]["template"]
        return str(template["metadata"]["annotations"][RESTART_ON])

    def told(self, base: str, words: str) -> bool:
        """Return True if an Event of the Pipeline has the words."""
        return any(
            e["reason"] == "SpecChanged" and e["involvedObject"]["name"] == base and words in e["message"]
            for e in self.kubectl.get("events")
        )


@pytest.fixture(scope="module")
def drivers(cluster: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drivers]:
    """The Pipelines, accepted by an operator that runs."""
    kubectl = cluster.make_namespace(f"levada-{uuid.uuid4().hex[:8]}")
    operator = Operator(kubectl.namespace, tmp_path_factory.mktemp("patches") / "operator.log")
    operator.start()
    # A pod with an account that does not exist is refused, and the patch with it.
    kubectl.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": PATCHES["driver.serviceAccount.name"]}}
    )
    for name, changes in BASES.items():
        body = {"apiVersion": "levada.dev/v1alpha1", "kind": "Pipeline", "metadata": {"name": name}}
        kubectl.apply({**body, "spec": spec(**changes)})
        eventually(lambda name=name: kubectl.get("statefulset", f"{name}-driver"))  # type: ignore[misc]  # bound on purpose
    yield Drivers(kubectl)
    operator.stop()
    print(operator.log.read_text())
    kubectl.remove_namespace()


CLAIM = "staging.volumeClaim.size"
APART = (CLAIM, "staging.scratch")
"""Fields whose change depends on where the Pipeline stages."""


@pytest.mark.parametrize("path", [p for p, c in CLASSES.items() if c is not Change.IMMUTABLE and p not in APART])
def test_patch_does_what_its_class_says(drivers: Drivers, path: str) -> None:
    """The Event names the class and the field. The driver's pod is replaced unless the class is Hot."""
    base, change = _base(path), CLASSES[path]
    before = drivers.template(base)
    drivers.kubectl.patch("pipeline", base, patch_of(path))
    eventually(lambda: drivers.told(base, f"{change.value}: spec.{path}"))
    assert (drivers.template(base) == before) is (change is Change.HOT)


@pytest.mark.parametrize("path", [p for p, c in CLASSES.items() if c is Change.IMMUTABLE])
def test_immutable_field_is_refused(drivers: Drivers, path: str) -> None:
    """The API server refuses the patch, and names the field."""
    with pytest.raises(AssertionError, match=re.escape(f"spec.{path} is Immutable")):
        drivers.kubectl.patch("pipeline", _base(path), patch_of(path))


def test_claim_that_may_not_grow_is_told(drivers: Drivers) -> None:
    """The cluster's own refusal is the Pipeline's: here no volume stands behind the claim. Set back, all is well."""
    drivers.kubectl.patch("pipeline", "own", patch_of(CLAIM))
    eventually(lambda: _accepted(drivers.kubectl) == "RefusedByCluster")
    drivers.kubectl.patch("pipeline", "own", {"spec": {"staging": {"volumeClaim": {"size": "1Gi"}}}})
    eventually(lambda: _accepted(drivers.kubectl) == "Valid")


def test_scratch_becomes_a_volume_and_never_the_reverse(drivers: Drivers) -> None:
    """A Pipeline on scratch space moves to a claim by a new pod. Back would lose what is staged there."""
    assert drivers.kubectl.get("persistentvolumeclaim", "scratch-staging") is None
    before = drivers.template("scratch")
    staging = {"scratch": False, "volumeClaim": {"size": "1Gi"}}
    drivers.kubectl.patch("pipeline", "scratch", {"spec": {"staging": staging}})
    eventually(lambda: drivers.told("scratch", "Restart: spec.staging.scratch, spec.staging.volumeClaim"))
    assert drivers.kubectl.get("persistentvolumeclaim", "scratch-staging") is not None
    assert drivers.template("scratch") != before
    drivers.kubectl.patch("pipeline", "scratch", {"spec": {"staging": {"scratch": True, "volumeClaim": None}}})
    eventually(lambda: _accepted(drivers.kubectl, "scratch") == "ImmutableChange")
    assert drivers.kubectl.get("persistentvolumeclaim", "scratch-staging") is not None
    drivers.kubectl.patch("pipeline", "scratch", {"spec": {"staging": {"scratch": False}}})
    eventually(lambda: _accepted(drivers.kubectl, "scratch") == "Valid")


def _accepted(kubectl: Kubectl, name: str = "own") -> str:
    conditions = kubectl.get("pipeline", name).get("status", {}).get("conditions", ())
    return next((str(c["reason"]) for c in conditions if c["type"] == "Accepted"), "")


_BASES = {
    "destination.bigquery": "bigquery",
    "destination.ducklake": "ducklake",
    "destination.opensearch": "opensearch",
    "destination.postgres": "postgres",
    "store.custom": "opensearch",
    "store.postgres.connection": "postgres",
    "destination.custom": "own",
    "staging.volumeClaim": "own",
    # An account has a name or annotations.
    "driver.serviceAccount.annotations": "own",
    # Appended tables need a managed publication.
    "tables.keyless": "scratch",
}


def _base(path: str) -> str:
    return next((base for prefix, base in _BASES.items() if path.startswith(prefix)), "lake")
