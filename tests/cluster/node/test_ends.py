"""A pod, a process, the operator or the kubelet that ends without warning comes back by itself. Nothing is lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.cluster.bringup import node
from tests.cluster.bringup.layout import Layout
from tests.cluster.kubectl import PATIENCE, Kubectl, eventually
from tests.cluster.node.installed import Installed
from tests.cluster.node.place import SHOP, Place
from traffic import Traffic  # type: ignore[import-not-found]

pytestmark = pytest.mark.nightly

assert SHOP  # the example's folder is on the path by its import


@contextmanager
def customers(shop: Place) -> Iterator[None]:
    """Let customers buy meanwhile. Wait afterwards until both sides are equal."""
    traffic = Traffic(shop.server.uri("shop")).start()
    try:
        yield
    finally:
        traffic.stop()
    shop.equal()


def test_deleted_pod_comes_back(shop: Place) -> None:
    """The driver's pod is deleted under writers: another takes its place, and both sides become equal."""
    with customers(shop):
        before = shop.driver_uid()
        shop.kubectl("delete", "pod", "shop-driver-0", "--wait=false")
        eventually(lambda: shop.driver_uid() not in ("", before))
        shop.ready()


def test_pod_that_vanished_comes_back(shop: Place) -> None:
    """The pod is gone without a last word, as with its machine: another takes over, and both sides become equal."""
    with customers(shop):
        before = shop.driver_uid()
        shop.kubectl("delete", "pod", "shop-driver-0", "--force", "--grace-period=0")
        eventually(lambda: shop.driver_uid() not in ("", before))
        shop.ready()


def test_killed_driver_comes_back(shop: Place) -> None:
    """kill -9 of the engine in its container: it is started again in the same pod, and both sides become equal."""
    with customers(shop):
        uid, restarts = shop.driver_uid(), shop.restarts()
        shop.kill_in_driver(".*/bin/levada run")
        eventually(lambda: shop.restarts() > restarts)
        shop.ready()
        assert shop.driver_uid() == uid


def test_killed_jvm_ends_the_driver(shop: Place) -> None:
    """kill -9 of Spark's JVM: the driver ends and is started again, and both sides become equal."""
    with customers(shop):
        uid, restarts = shop.driver_uid(), shop.restarts()
        shop.kill_in_driver(".*/bin/java")
        eventually(lambda: shop.restarts() > restarts)
        shop.ready()
        assert shop.driver_uid() == uid


def test_hung_apply_is_started_again(shop: Place) -> None:
    """Spark's JVM stands still: once the deadline is over the driver is started again, and both sides become equal."""
    shop.patch(health={"progressDeadlineSeconds": 60})
    try:
        with customers(shop):
            uid, restarts = shop.driver_uid(), shop.restarts()
            shop.kill_in_driver(".*/bin/java", "STOP")
            eventually(lambda: shop.restarts() > restarts)
            shop.ready()
            assert shop.driver_uid() == uid
    finally:
        shop.patch(health=None)


def test_replication_goes_on_without_the_operator(shop: Place, operator: Installed) -> None:
    """Changes arrive while there is no operator. A new operator leaves the driver's pod alone."""
    uid, restarts = shop.driver_uid(), shop.restarts()
    operator.kubectl("scale", "deployment", "--all", "--replicas=0")
    eventually(lambda: not operator.pod())
    with customers(shop):
        pass
    operator.kubectl("scale", "deployment", "--all", "--replicas=1")
    operator.kubectl("rollout", "status", "deployment", PATIENCE)
    shop.ready()
    assert (shop.driver_uid(), shop.restarts()) == (uid, restarts)


def test_restarted_kubelet_changes_nothing(shop: Place, layout: Layout, cluster: Kubectl) -> None:
    """The node's kubelet is killed and comes back: the same pod, the same process, and changes arrive."""
    uid, restarts = shop.driver_uid(), shop.restarts()
    with customers(shop):
        node.kill(layout, "kubelet")
        eventually(lambda: cluster.run("get", "--raw", "/api/v1/nodes/node1/proxy/healthz", check=False).stdout == "ok")
    shop.ready()
    assert (shop.driver_uid(), shop.restarts()) == (uid, restarts)


def test_restarted_api_server_changes_nothing(shop: Place, layout: Layout, cluster: Kubectl) -> None:
    """The API server is killed and comes back. No pod restarts, and the operator continues its reports."""
    uid, restarts = shop.driver_uid(), shop.restarts()
    with customers(shop):
        node.kill(layout, "apiserver")
        eventually(lambda: cluster.run("get", "--raw=/readyz", check=False).stdout == "ok")
    shop.ready()
    assert (shop.driver_uid(), shop.restarts()) == (uid, restarts)
    shop.patch(suspend=True)
    shop.reaches("Suspended", "True", "Drained")
    shop.patch(suspend=False)
    shop.ready()
