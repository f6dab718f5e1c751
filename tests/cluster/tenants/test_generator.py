"""A tenant who creates odd objects without end, next to a Pipeline that is changed all the time. `make test-tenants`.

The operator serves all namespaces, so no other test may run on the same cluster.
"""

from __future__ import annotations

import contextlib
import os
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.api.pipelines import shop
from tests.cluster.api.processes import Operator
from tests.cluster.kubectl import Kubectl, eventually
from tests.cluster.tenants.bare_client import Delays, comparison
from tests.cluster.tenants.hostile import Tenant
from tests.cluster.tenants.limited import memory_limit
from tests.cluster.tenants.odd_objects import OddObjects
from tests.cluster.tenants.place import MEMORY, Place

ROUNDS = int(os.environ.get("TENANTS_ROUNDS", "30"))
SEED = int(os.environ.get("TENANTS_SEED", "1"))
LONE_TABLES = int(os.environ.get("TENANTS_TABLES", "3000"))

pytestmark = pytest.mark.nightly


class LoneTables:
    """TableSyncs without a Pipeline, in a namespace without other objects, whose limit of memory they would share."""

    def __init__(self, kubectl: Kubectl) -> None:
        self._kubectl = kubectl
        self._numbers = iter(range(LONE_TABLES))
        self._lock = threading.Lock()

    def create(self, over: threading.Event) -> None:
        """Create those that no other thread creates, until all are there."""
        while not over.is_set():
            with self._lock:
                number = next(self._numbers, None)
            if number is None:
                return
            self._kubectl.create({
                "apiVersion": "levada.dev/v1alpha1", "kind": "TableSync", "metadata": {"name": f"lone-{number}"},
                "spec": {"pipelineRef": {"name": "none"}, "table": {"schema": "public", "name": f"t{number}"}},
            })  # fmt: skip

    def answered(self) -> bool:
        """Return True once each is there and has Accepted=False/NoPipeline."""
        found = [c for t in self._kubectl.get("tablesyncs") for c in t["status"].get("conditions", ())]
        reasons = [c["reason"] for c in found if c["type"] == "Accepted"]
        return reasons == ["NoPipeline"] * LONE_TABLES


@pytest.fixture
def places(cluster: Kubectl, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[list[Place]]:
    """Operators that serve all namespaces, each with a limit of its own: the leader and its standbys."""
    honest, bad = (cluster.make_namespace(f"levada-{uuid.uuid4().hex[:8]}") for _ in range(2))
    tenant, found = Tenant(bad), []
    tenant.welcome()
    with contextlib.ExitStack() as stack:
        for number in range(request.param):
            memory = stack.enter_context(memory_limit(MEMORY))
            operator = Operator(honest.namespace, tmp_path / f"operator-{number}.log", serves="", enter=memory.enter)
            operator.start() if number == 0 else operator.join()
            found.append(Place(operator, honest, tenant, memory))
        honest.apply(shop())
        eventually(lambda: honest.get("configmap", "shop-manifest"))
        yield found
        for place in found:
            if place.operator.process is not None and place.operator.process.poll() is None:
                place.operator.stop()
            print(place.operator.log.read_text()[-5000:])
    bad.remove_namespace()
    honest.remove_namespace()


@pytest.fixture
def lone(cluster: Kubectl) -> Iterator[LoneTables]:
    """A namespace for them."""
    kubectl = cluster.make_namespace(f"levada-{uuid.uuid4().hex[:8]}")
    yield LoneTables(kubectl)
    kubectl.remove_namespace()


@pytest.mark.parametrize("places", [1, 2], indirect=True, ids=["one", "two"])
def test_odd_objects_of_a_tenant(places: list[Place], lone: LoneTables) -> None:
    """The other namespace's Pipeline is reconciled meanwhile, no process ends, and none is killed for its memory.

    Each change of it is taken within 5 s, or as soon as the API server and the machine allow. Each of 3,000 TableSyncs
    says that it has no Pipeline. With two replicas the leader ends halfway, and the standby leads.
    """
    leader = places[0]
    odd, over = OddObjects(leader.tenant, SEED), threading.Event()

    def odd_objects() -> None:
        while not over.is_set():
            odd.step()

    threads = [threading.Thread(target=work) for work in (odd_objects, *[lambda: lone.create(over)] * 4)]
    for thread in threads:
        thread.start()
    delays: list[Delays] = []
    try:
        with comparison(leader.honest.namespace) as client:
            while len(delays) < ROUNDS or not lone.answered():
                delays.append(client.change(next(leader.turn)))
                if len(places) > 1 and len(delays) == ROUNDS // 2:
                    leader.operator.stop()
    finally:
        over.set()
        for thread in threads:
            thread.join()
        print("in order:", " ".join(f"{each.operator:.1f}/{each.bare:.1f}" for each in delays))
    for place in places[len(places) - 1 :]:
        place.holds()
    assert all(place.memory.kills == 0 for place in places)
    for who, times in (("operator", [d.operator for d in delays]), ("bare client", [d.bare for d in delays])):
        times.sort()
        print(f"{len(times)} changes, {who}: median {times[len(times) // 2]:.1f} s, longest {times[-1]:.1f} s")
    print(f"odd objects: {odd.done}, refused {odd.refused}")
    print("peak MiB:", [place.memory.peak >> 20 for place in places])
    # The first change after the end of a leader waits for the lists of its namespace: some 15 requests more.
    first = delays.pop(ROUNDS // 2) if len(places) > 1 else delays[0]
    assert first.is_fair(25)
    assert [each for each in delays if not each.is_fair()] == []
