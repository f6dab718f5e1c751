"""Mode Cluster: Spark's tasks run in pods of their own, which go with their driver."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cluster.kubectl import eventually
from tests.cluster.node.place import Place

pytestmark = pytest.mark.nightly


def cluster_mode(place: Place) -> dict[str, Any]:
    """Return the changes by which the shop runs with two executors. They see the lake as their driver does."""
    volumes = place.manifest()["spec"]["driver"]["podTemplate"]["spec"]["volumes"]
    mounts = [{"name": "lake", "mountPath": "/var/lib/lake"}]
    small = {"requests": {"cpu": "100m", "memory": "1Gi"}, "limits": {"memory": "1Gi"}}
    return {
        "driver": {"mode": "Cluster", "resources": {"requests": {"cpu": "100m"}}},
        "executor": {
            "instances": {"min": 2, "max": 2},
            "resources": small,
            "podTemplate": {"spec": {"containers": [{"name": "executor", "volumeMounts": mounts}], "volumes": volumes}},
        },
    }


def executors(place: Place) -> set[str]:
    """Return the uids of the executors that run."""
    pods = place.kubectl.get("pods", labels="levada.dev/role=executor")
    return {p["metadata"]["uid"] for p in pods if p["status"]["phase"] == "Running"}


def test_executors_work_and_go_with_their_driver(place: Place) -> None:
    """Two executors copy and apply. A deleted driver takes its executors along, and the next driver has new ones."""
    place.apply(**cluster_mode(place))
    place.ready()
    first = eventually(lambda: found if len(found := executors(place)) == 2 else set())
    place.equal()
    driver = place.driver_uid()
    place.kubectl("delete", "pod", "shop-driver-0", "--wait=false")
    eventually(lambda: place.driver_uid() not in ("", driver))
    eventually(lambda: not executors(place) & first)
    place.execute("UPDATE customers SET name = name || '.'")
    place.ready()
    eventually(lambda: len(executors(place)) == 2)
    place.equal()
    place.patch(suspend=True)
    eventually(lambda: not place.kubectl.get("pods", labels="levada.dev/role=executor"))
