"""The status of a Pipeline that the cluster, or its source, refuses: it says so, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest
from tests.cluster.bringup.layout import Layout
from tests.cluster.kubectl import PATIENCE, Kubectl, eventually
from tests.cluster.node.installed import Installed
from tests.cluster.node.place import PASSWORD, ROLE, Place, new_place, secret
from tests.cluster.node.printed import prints

pytestmark = pytest.mark.nightly

SIDECAR: Final = {"name": "side", "image": "localhost/side:1", "securityContext": {"privileged": True}}
QUOTA: Final[dict[str, Any]] = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "small"},
    "spec": {"hard": {"requests.memory": "100Mi"}},
}


@pytest.fixture(scope="module")
def small(layout: Layout, cluster: Kubectl, operator: Installed) -> Iterator[Place]:
    """A place with few rows. The tests use it in their order."""
    with new_place(layout, cluster, scale=0.002) as one:
        yield one


def message(place: Place, kind: str) -> str:
    """Return the message of a condition."""
    return str(next(c["message"] for c in place.status()["conditions"] if c["type"] == kind))


def template(place: Place, **spec: Any) -> dict[str, Any]:
    """Return the driver's section of the example with more in its pod template."""
    driver: dict[str, Any] = place.manifest()["spec"].get("driver", {})
    given = driver.get("podTemplate", {})
    return {**driver, "podTemplate": {**given, "spec": {**given.get("spec", {}), **spec}}}


def test_new_pipeline_with_a_typo_in_its_pod_template(small: Place) -> None:
    """A field that Kubernetes does not know is named by the status, and no column of kubectl get is blank."""
    small.apply(driver=template(small, tolerationz=[]))
    small.reaches("Accepted", "False", "RefusedByCluster")
    small.reaches("DriverAvailable", "False", "RefusedByCluster")
    assert "tolerationz" in message(small, "Accepted")
    assert small.kubectl("get", "pipeline", "shop").splitlines()[1].split()[:4] == ["shop", "False", "Failed", "0/0"]
    assert small.kubectl.get("configmap", "shop-manifest") is None
    prints(small, "typo_in_a_new_pipeline")


def test_privileged_sidecar(small: Place) -> None:
    """A pod that the namespace's Pod Security Standard refuses is reported, with the field to change."""
    containers = [*template(small)["podTemplate"]["spec"].get("containers", ()), SIDECAR]
    small.apply(driver=template(small, containers=containers))
    small.reaches("DriverAvailable", "False", "PodRefused")
    assert "violates PodSecurity" in message(small, "DriverAvailable")
    assert "spec.driver.podTemplate" in message(small, "DriverAvailable")
    assert small.told("PodRefused", "violates PodSecurity")
    assert small.status()["phase"] == "Failed"
    prints(small, "privileged_sidecar")


def test_quota(small: Place) -> None:
    """A quota that has no room for the driver is named. With room, the driver runs."""
    small.kubectl("delete", "pipeline", "shop", PATIENCE)
    small.kubectl.apply(QUOTA)
    small.apply()
    small.reaches("DriverAvailable", "False", "PodRefused")
    assert "exceeded quota: small" in message(small, "DriverAvailable")
    prints(small, "quota")
    small.kubectl("delete", "resourcequota", "small")
    # A change of the StatefulSet ends its controller's back-off.
    small.kubectl("annotate", "statefulset", "shop-driver", "test=again")
    small.ready()
    small.equal()


def test_typo_leaves_the_driver_alone(small: Place) -> None:
    """The driver that runs goes on under the last accepted spec, and the typo is in the status until it is gone."""
    uid = small.driver_uid()
    small.apply(freshnessSeconds=7, driver=template(small, tolerationz=[]))
    small.reaches("Accepted", "False", "RefusedByCluster")
    assert "the last accepted spec keeps running" in message(small, "Accepted")
    small.execute("UPDATE customers SET name = name || '!'")
    small.equal()
    assert small.driver_uid() == uid
    prints(small, "typo_in_a_running_pipeline")
    small.kubectl.patch("pipeline", "shop", {"spec": {"driver": {"podTemplate": {"spec": {"tolerationz": None}}}}})
    small.reaches("Accepted", "True", "Valid")
    eventually(
        lambda: "freshnessSeconds: 7" in small.kubectl.get("configmap", "shop-manifest")["data"]["pipeline.yaml"]
    )


def test_wrong_password_under_writers(small: Place) -> None:
    """While the source refuses the driver, no table is Ready and the lag grows. Afterwards both sides become equal."""
    small.execute(
        f"ALTER ROLE {ROLE} PASSWORD 'changed'",
        f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{ROLE}'",
        "UPDATE customers SET name = name || '?'",
    )
    small.reaches("SourceReachable", "False", "Refused")
    # First the server's own end of the session, then the refused one.
    eventually(lambda: "Secret shop-cdc" in message(small, "SourceReachable"))

    def phases() -> set[str]:
        return {t.get("status", {}).get("phase", "") for t in small.kubectl.get("tablesyncs")}

    eventually(lambda: phases() == {"Stale"})
    for table in small.kubectl.get("tablesyncs"):
        assert table["status"]["lagSeconds"] >= 60
        (ready,) = (c for c in table["status"]["conditions"] if c["type"] == "Ready")
        assert (ready["status"], ready["reason"]) == ("False", "NotReplicating")
    eventually(lambda: small.status()["display"]["tables"].startswith("0/"))
    prints(small, "wrong_password_while_streaming")
    small.execute(f"ALTER ROLE {ROLE} PASSWORD '{PASSWORD}'")
    small.ready()
    eventually(lambda: phases() == {"Ready"})
    small.equal()


def test_suspended_table_is_not_counted(small: Place) -> None:
    """A table that is suspended is in the status as such, and the Pipeline stays Ready."""
    small.kubectl.patch("tablesync", "shop-public-baskets", {"spec": {"suspend": True}})
    eventually(lambda: small.status()["tables"]["byPhase"].get("Suspended") == 1)
    total = small.status()["tables"]["total"]
    eventually(lambda: small.status()["display"]["tables"] == f"{total - 1}/{total}")
    # The driver reads the changed manifest within about a minute.
    small.reaches("Ready", "True", "Streaming")
    prints(small, "suspended_table")
    small.kubectl.patch("tablesync", "shop-public-baskets", {"spec": {"suspend": False}})
    eventually(lambda: small.status()["display"]["tables"] == f"{total}/{total}")


def test_deletion_with_a_wrong_password(small: Place) -> None:
    """A clean-up that the source refuses is given up before its time is over, with the SQL that is left to do."""
    small.kubectl.apply(secret("wrong"))
    small.kubectl("delete", "pipeline", "shop", PATIENCE)
    assert small.told("CleanupAbandoned", "cannot log in", "pg_drop_replication_slot")
    assert small.slot() is not None
    small.execute(f"SELECT pg_drop_replication_slot('{small.slot_name}')")


def test_deletion_with_an_image_that_is_nowhere(small: Place) -> None:
    """A clean-up whose image cannot be pulled is given up before its time is over, and the Event names the image."""
    small.kubectl.apply(secret())
    small.apply(driver={"image": "localhost/nowhere:1"})
    small.reaches("DriverAvailable", "False", "ImagePullFailed")
    small.kubectl("delete", "pipeline", "shop", PATIENCE)
    assert small.told("CleanupAbandoned", "nowhere", "pg_drop_replication_slot")
