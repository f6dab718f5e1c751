"""Two operators against a real API server: the holder of the Lease writes, the other stands by."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.api.pipelines import streaming
from tests.cluster.api.processes import FakeDriver, Operator
from tests.cluster.kubectl import LIMIT_S, PATIENCE, Kubectl, eventually

LEADER = "levada_operator_leader"


@pytest.fixture
def second(kubectl: Kubectl, operator: Operator, tmp_path: Path) -> Iterator[Operator]:
    """Another operator of the same Lease, started when the first one leads."""
    eventually(lambda: operator.metrics().get(LEADER) == 1)
    one = Operator(kubectl.namespace, tmp_path / "second.log")
    one.join()
    eventually(lambda: one.metrics().get(LEADER) == 0)
    yield one
    one.stop()
    print(one.log.read_text())
    assert "Traceback" not in one.log.read_text()


def holder(kubectl: Kubectl) -> str:
    """Return who holds the Lease."""
    return str(kubectl.get("lease", "levada-operator")["spec"].get("holderIdentity", ""))


def writes(operator: Operator) -> float:
    """Return how many writes an operator has made."""
    return sum(v for k, v in operator.metrics().items() if k.startswith("levada_operator_writes_total"))


def test_sigterm_hands_over(kubectl: Kubectl, operator: Operator, second: Operator, driver: FakeDriver) -> None:
    """The standby writes nothing while the first leads, and goes on where the first has ended."""
    streaming(kubectl, driver)
    first = holder(kubectl)
    eventually(lambda: writes(operator) > 0)
    assert writes(second) == 0
    operator.stop()
    eventually(lambda: second.metrics().get(LEADER) == 1)
    assert holder(kubectl) != first
    kubectl.patch("pipeline", "shop", {"spec": {"suspend": True}})
    eventually(lambda: kubectl.get("statefulset", "shop-driver")["spec"]["replicas"] == 0)
    # It counts a write once it has the answer.
    eventually(lambda: writes(second) > 0)


def test_killed_leader_is_followed(kubectl: Kubectl, operator: Operator, second: Operator, driver: FakeDriver) -> None:
    """After a kill the standby waits for the Lease's time, then leads. The Lease counts its holders."""
    streaming(kubectl, driver)
    operator.stop(signal.SIGKILL)
    eventually(lambda: second.metrics().get(LEADER) == 1)
    assert kubectl.get("lease", "levada-operator")["spec"]["leaseTransitions"] == 2
    kubectl.patch("pipeline", "shop", {"spec": {"freshnessSeconds": 30}})
    eventually(lambda: "freshnessSeconds: 30" in kubectl.get("configmap", "shop-manifest")["data"]["pipeline.yaml"])


def test_two_that_start_at_the_same_time(kubectl: Kubectl, operator: Operator, tmp_path: Path) -> None:
    """The API server lets one of two writes to the Lease through."""
    kubectl("wait", "--for=jsonpath={.spec.holderIdentity}", "lease/levada-operator", PATIENCE)
    operator.stop()
    two = [Operator(kubectl.namespace, tmp_path / f"{i}.log") for i in range(2)]
    try:
        for one in two:
            one.join()
        eventually(lambda: sorted(one.metrics().get(LEADER, -1.0) for one in two) == [0, 1])
    finally:
        for one in two:
            one.stop()
    operator.start()


def test_stolen_lease_is_taken_back(kubectl: Kubectl, operator: Operator, second: Operator, driver: FakeDriver) -> None:
    """A holder that no process is, with a Lease of an hour and a time of the future, delays a standby by a minute."""
    streaming(kubectl, driver)
    stolen = {"holderIdentity": "x", "leaseDurationSeconds": 3600, "renewTime": "2099-01-01T00:00:00.000000Z"}
    kubectl.patch("lease", "levada-operator", {"spec": stolen})
    assert operator.process is not None
    assert operator.process.wait(LIMIT_S) == 1
    operator.process = None
    eventually(lambda: second.metrics().get(LEADER) == 1)
    kubectl.patch("pipeline", "shop", {"spec": {"freshnessSeconds": 30}})
    eventually(lambda: "freshnessSeconds: 30" in kubectl.get("configmap", "shop-manifest")["data"]["pipeline.yaml"])
