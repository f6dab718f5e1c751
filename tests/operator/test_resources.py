"""Pods have the size that their destination needs, and nothing of Spark unless it may use Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.operator.samples import owner, owner_of

from levada.docstrings import field_docstring
from levada.spec.running import Driver, DriverMode
from levada_operator.desired.jobs import build_cleanup_job, build_copy_job, build_lag_job
from levada_operator.desired.objects import build_objects
from levada_operator.desired.owner import Owner
from levada_operator.desired.rehearsal import build_executor_rehearsal
from levada_operator.desired.resources import WITH_SPARK, WITHOUT_SPARK, driver_resources, executor_resources

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*/pipeline.yaml"))

POSTGRES = {"iceberg": None, "postgres": {"host": "replica", "database": "replica"}}


def bodies(one: Owner) -> list[dict[str, Any]]:
    """Return the objects and Jobs of a Pipeline, except for the manifest, which may name what is not set."""
    jobs = [build_lag_job(one, 1), build_copy_job(one, "s", "t", "o"), build_cleanup_job(one)]
    return [b for b in [*build_objects(one, running=True), *jobs] if not b["metadata"]["name"].endswith("-manifest")]


def containers(one: Owner) -> list[dict[str, Any]]:
    """Return the containers of the driver's pod and of the Jobs."""
    pods = [b["spec"]["template"]["spec"] for b in bodies(one) if b["kind"] in ("StatefulSet", "Job")]
    return [c for pod in pods for c in (*pod.get("initContainers", ()), *pod["containers"])]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.parent.name)
def test_examples(path: Path) -> None:
    """Each example is accepted, and has rights, ports, files and variables for Spark only if it may use Spark.

    The same holds for executors, which are only for those of mode Cluster.
    """
    one = owner_of(path.read_text())
    its = str(bodies(one)).lower()
    executors = one.spec.driver.mode is DriverMode.CLUSTER
    assert ("spark" in its) is one.spec.destination.spark
    assert ("executor" in its) is executors
    assert bool(build_executor_rehearsal(one, "")) is executors
    kinds = [b["kind"] for b in bodies(one) if b["kind"] != "PersistentVolumeClaim"]
    rights = ["ServiceAccount"] * (2 if executors else 1) + ["Role", "RoleBinding"]
    policies = ["NetworkPolicy"] * (3 if executors else 1)
    assert kinds == [*rights, *policies, "Service", "StatefulSet", "Job", "Job", "Job"]
    files = {"pipeline.yaml", *(("executor.yaml", "spark.properties") if executors else ())}
    assert [set(b["data"]) for b in build_objects(one, running=True) if "data" in b] == [files]


@pytest.mark.parametrize(
    ("destination", "amounts"),
    [
        ({}, WITH_SPARK),
        (POSTGRES, WITHOUT_SPARK),
        ({"iceberg": None, "custom": {"type": "theirs"}}, WITH_SPARK),
    ],
    ids=["iceberg", "postgres", "custom"],
)
def test_defaults(destination: dict[str, Any], amounts: dict[str, str]) -> None:
    """Without resources in the manifest, requests are the destination's, and the memory is the limit too.

    The operator does not know the classes of other packages, so their pods have room for Spark.
    """
    one = owner(destination=destination)
    expected = {"requests": amounts, "limits": {"memory": amounts["memory"]}}
    assert driver_resources(one) == executor_resources(one) == expected
    assert [c["resources"] for c in containers(one) if c["name"] in ("preflight", "driver", "copy", "cleanup")] == (
        [expected] * 4
    )
    assert all(amount in (field_docstring(Driver, "resources") or "") for amount in amounts.values())


def test_each_amount_has_its_own_default() -> None:
    """A request alone leaves the other default, a limit alone is the request too, and nothing is above its limit."""
    requested = owner(driver={"resources": {"requests": {"cpu": "2", "ephemeral-storage": "1Gi"}}})
    assert driver_resources(requested) == {
        "requests": {"memory": "3Gi", "cpu": "2", "ephemeral-storage": "1Gi"},
        "limits": {"memory": "3Gi"},
    }
    limited = owner(driver={"resources": {"limits": {"cpu": "250m", "memory": "512Mi"}}})
    assert driver_resources(limited) == {"requests": {}, "limits": {"cpu": "250m", "memory": "512Mi"}}
    only_memory = owner(destination=POSTGRES, driver={"resources": {"requests": {"memory": "4Gi"}}})
    assert driver_resources(only_memory) == {"requests": {"cpu": "500m", "memory": "4Gi"}, "limits": {}}
