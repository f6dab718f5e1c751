"""A condition reports the cause that keeps a driver from running, and its remedy. After the remedy the driver runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.cluster.bringup.layout import Layout
from tests.cluster.kubectl import Kubectl, eventually
from tests.cluster.node.installed import Installed
from tests.cluster.node.place import Place, new_place, secret
from tests.cluster.node.printed import prints

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def troubled(layout: Layout, cluster: Kubectl, operator: Installed) -> Iterator[Place]:
    """A place whose Pipeline runs only at the end."""
    with new_place(layout, cluster, scale=0.002) as one:
        yield one


def told(place: Place, golden: str, reason: str, *words: str) -> None:
    """Wait until the driver is unavailable for that reason. Condition and Event have the words, kubectl prints them."""
    place.reaches("DriverAvailable", "False", reason)
    eventually(lambda: all(word in place.message("DriverAvailable") for word in words))
    place.told(reason, *words)
    assert place.condition("Ready")[0] == "False"
    prints(place, golden)


def test_image_that_is_nowhere(troubled: Place) -> None:
    """An image that cannot be pulled is named."""
    troubled.apply(driver={"image": "localhost/nowhere:1"})
    told(troubled, "image_that_is_nowhere", "ImagePullFailed", "localhost/nowhere:1")


def test_pod_that_fits_no_node(troubled: Place) -> None:
    """A pod that asks for more than any node has is reported with the field to change."""
    troubled.apply(driver={"resources": {"requests": {"cpu": "64"}}})
    told(troubled, "no_node_with_room", "Unschedulable", "Insufficient cpu", "spec.driver.resources")


def test_missing_secret(troubled: Place) -> None:
    """A missing Secret is named, and the pod waits for it."""
    troubled.kubectl("delete", "secret", "shop-cdc")
    troubled.apply()
    told(troubled, "missing_secret", "SecretMissing", "shop-cdc")


def test_wrong_password(troubled: Place) -> None:
    """A login that is refused fails the preflight, with the engine's own words and code."""
    troubled.kubectl.apply(secret("wrong"))
    troubled.apply()
    told(troubled, "wrong_password_at_the_start", "PreflightFailed", "password", "source_auth_failed")


def preflight(place: Place) -> dict[str, Any]:
    """Return the state of the preflight's container, empty before there is one."""
    states = place.driver().get("status", {}).get("initContainerStatuses", ())
    return next((dict(s) for s in states if s["name"] == "preflight"), {})


def test_corrected_secret_is_taken_at_once(troubled: Place) -> None:
    """The preflight that fails again stays, its reason too. It takes a corrected Secret without another start."""
    eventually(lambda: "running" in preflight(troubled).get("state", {}) and preflight(troubled)["restartCount"])
    starts = preflight(troubled)["restartCount"]
    assert troubled.condition("DriverAvailable") == ("False", "PreflightFailed")
    troubled.kubectl.apply(secret())
    troubled.reaches("DriverAvailable", "True", "PodReady")
    troubled.ready()
    assert preflight(troubled)["restartCount"] == starts


def test_driver_without_memory(troubled: Place) -> None:
    """A driver that the kernel ends for its memory is reported with the field to raise."""
    troubled.kubectl.apply(secret())
    troubled.apply(driver={"resources": {"requests": {"memory": "200Mi"}, "limits": {"memory": "200Mi"}}})
    # Until then the last report of the driver counts.
    troubled.reaches("Replicating", "False", "Stopped")
    told(troubled, "out_of_memory", "OutOfMemory", "limits.memory")


def test_mended_it_runs(troubled: Place) -> None:
    """After all remedies the Pipeline becomes Ready, and its conditions keep nothing of the trouble."""
    troubled.kubectl.apply(secret())
    troubled.apply()
    troubled.ready()
    assert troubled.condition("DriverAvailable") == ("True", "PodReady")
    troubled.equal()
