"""A Pipeline whose destination does not use Spark: a small pod without a JVM, which copies, streams and is replaced."""

from __future__ import annotations

import re

from tests.cluster.kubectl import PATIENCE, eventually
from tests.cluster.node.place import SHOP, TABLES, Place
from tests.cluster.node.replica import REPLICA, differences, equal, replica
from traffic import Traffic  # type: ignore[import-not-found]

from levada_operator.desired.resources import WITHOUT_SPARK

assert SHOP  # the example's folder is on the path by its import


def test_postgresql_from_apply_to_nothing_left(place: Place) -> None:
    """Ready and equal under writers, after a deleted pod, a killed engine and a pause too. No JVM, no right to pods."""
    place.execute(f"CREATE DATABASE {REPLICA}")
    kubectl = place.kubectl
    traffic = Traffic(place.server.uri("shop")).start()
    place.apply(**replica())
    place.ready()
    (driver,) = (c for c in place.driver()["spec"]["containers"] if c["name"] == "driver")
    assert driver["resources"] == {"requests": WITHOUT_SPARK, "limits": {"memory": WITHOUT_SPARK["memory"]}}
    assert "java" not in place.in_driver("bash", "-c", "cat /proc/[0-9]*/comm")
    rights = kubectl.get("roles,rolebindings", labels="levada.dev/pipeline")
    verbs = [(rule["verbs"], rule["resources"]) for found in rights for rule in found.get("rules", ())]
    assert verbs == [(["get"], ["namespaces"]), (["patch"], ["pipelines/status"])]
    traffic.stop()
    equal(place)

    traffic = Traffic(place.server.uri("shop"), seed=8).start()
    uid = place.driver_uid()
    kubectl("delete", "pod", "shop-driver-0", "--force", "--grace-period=0")
    eventually(lambda: place.driver_uid() not in ("", uid))
    # Of the Pipeline, the status may still be that of the former pod.
    kubectl("wait", "--for=condition=Ready", "pod/shop-driver-0", PATIENCE)
    restarts = place.restarts()
    place.kill_in_driver(".*/bin/levada run")
    eventually(lambda: place.restarts() > restarts)
    place.ready()
    traffic.stop()
    equal(place)

    place.patch(suspend=True)
    place.reaches("Suspended", "True", "Drained")
    place.execute("UPDATE customers SET name = name || '#'")
    place.patch(suspend=False)
    place.ready()
    equal(place)

    # The rows may be equal before the operator has seen that the killed engine runs again.
    line = r"shop +True +Streaming +6/6 +\S+ +\S+"
    eventually(lambda: re.fullmatch(line, kubectl("get", "pipelines").splitlines()[1].strip()))
    eventually(lambda: kubectl("get", "tablesyncs").count(" Ready ") == len(TABLES))

    kubectl("delete", "pipeline", "shop", PATIENCE)
    assert place.slot() is None
    assert place.told("CleanupFinished")
    remains = "pods,jobs,statefulsets,configmaps,services,networkpolicies,serviceaccounts,tablesyncs"
    eventually(lambda: kubectl.get(remains, labels="levada.dev/pipeline") == [])
    assert differences(place) == [], "the tables at the destination stay"
