"""A change whose pod does not become Ready goes back by itself, as the API server stores it."""

from __future__ import annotations

from tests.cluster.api.pipelines import condition, driver_image, has_pod_of, make_ready, shop, told
from tests.cluster.api.processes import Operator
from tests.cluster.kubectl import Kubectl, eventually

from levada_operator.names import REJECTED

BAD = "levada:none"
SHORT = {"progressDeadlineSeconds": 30}


def test_change_goes_back(kubectl: Kubectl, operator: Operator, controllers: None) -> None:
    """The former template is back after the deadline, also by the next operator. A nonce tries again."""
    kubectl.apply(shop())
    former = eventually(lambda: driver_image(kubectl, "shop"))
    make_ready(kubectl, "shop")
    operator.swept_twice()
    kubectl.patch("pipeline", "shop", {"spec": {"driver": {"image": BAD}, "health": SHORT}})
    eventually(lambda: has_pod_of(kubectl, "shop", BAD))
    operator.stop()
    operator.start()
    eventually(lambda: has_pod_of(kubectl, "shop", former))
    eventually(lambda: condition(kubectl, "Accepted") == ("False", "RolledBack"))
    eventually(lambda: condition(kubectl, "Stalled") == ("True", "RolledBack"))
    make_ready(kubectl, "shop")
    operator.swept_twice()
    eventually(lambda: condition(kubectl, "DriverAvailable") == ("True", "PodReady"))
    assert (driver_image(kubectl, "shop"), condition(kubectl, "Accepted")[1]) == (former, "RolledBack")
    assert "spec.driver.image" in told(kubectl, "RolledBack")
    kubectl.patch("pipeline", "shop", {"spec": {"restartNonce": 1, "health": None}})
    eventually(lambda: has_pod_of(kubectl, "shop", BAD))
    make_ready(kubectl, "shop")
    eventually(lambda: condition(kubectl, "Accepted") == ("True", "Valid"))
    eventually(lambda: REJECTED not in kubectl.get("statefulset", "shop-driver")["metadata"]["annotations"])
