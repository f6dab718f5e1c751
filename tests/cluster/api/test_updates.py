"""An upgrade of the operator with three Pipelines: each driver restarts when the former one is Ready again."""

from __future__ import annotations

from tests.cluster.api.pipelines import driver_image, driver_pod, events, make_ready, shop
from tests.cluster.api.processes import Operator
from tests.cluster.kubectl import Kubectl, eventually

NAMES = ("east", "north", "west")


def updated(kubectl: Kubectl, to: str) -> list[str]:
    """Return the Pipelines whose drivers are to have that image."""
    return [name for name in NAMES if driver_image(kubectl, name) == to]


def test_one_by_one(kubectl: Kubectl, operator: Operator, controllers: None) -> None:
    """The next driver restarts when the one before it is Ready, also after a restart of the operator in between."""
    for name in NAMES:
        kubectl.apply(shop(name, source={"slot": {"name": f"slot_{name}"}}))
    for name in NAMES:
        eventually(lambda name=name: driver_image(kubectl, name))  # type: ignore[misc]  # bound on purpose
        make_ready(kubectl, name)
    operator.swept_twice()
    operator.stop()
    operator.image = "levada:next"
    operator.start()
    done: list[str] = []
    while len(done) < len(NAMES):
        eventually(lambda: len(updated(kubectl, "levada:next")) > len(done))
        operator.swept_twice()
        now = updated(kubectl, "levada:next")
        assert len(now) == len(done) + 1
        if len(done) == 1:
            operator.stop()
            operator.start()
            operator.swept_twice()
            assert updated(kubectl, "levada:next") == now
        (new,) = set(now) - set(done)
        make_ready(kubectl, new)
        done.append(new)
    eventually(lambda: len(events(kubectl, "DriverUpdated")) == len(NAMES))


def test_restart_nonce(kubectl: Kubectl, operator: Operator, controllers: None) -> None:
    """Another ``restartNonce`` replaces the pod, and the Event names the field."""
    kubectl.apply(shop())
    eventually(lambda: driver_image(kubectl, "shop"))
    make_ready(kubectl, "shop")
    before = driver_pod(kubectl, "shop")["metadata"]["uid"]
    operator.swept_twice()
    kubectl.patch("pipeline", "shop", {"spec": {"restartNonce": 1}})
    eventually(lambda: driver_pod(kubectl, "shop").get("metadata", {}).get("uid", before) != before)
    eventually(lambda: "Restart: spec.restartNonce" in events(kubectl, "SpecChanged"))
