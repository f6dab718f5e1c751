"""The example, from `kubectl apply` to nothing left, as a user runs it."""

from __future__ import annotations

import re

from tests.cluster.kubectl import PATIENCE, eventually
from tests.cluster.node.place import SHOP, TABLES, Place
from traffic import Traffic  # type: ignore[import-not-found]


def test_shop_from_apply_to_nothing_left(place: Place) -> None:
    """The example is Ready as it is, equal under writers, verified and shown by kubectl.

    Its deletion leaves only the lake.
    """
    kubectl = place.kubectl
    traffic = Traffic(place.server.uri("shop")).start()
    kubectl("apply", "-f", str(SHOP / "pipeline.yaml"))
    place.ready()
    traffic.stop()
    place.equal()
    verified = place.in_driver("levada", "verify")
    assert verified.count(": equal at ") == len(TABLES), verified

    head, _ = kubectl("get", "pipelines").splitlines()
    assert head.split() == ["NAME", "READY", "PHASE", "TABLES", "LAG", "AGE"]
    line = r"shop +True +Streaming +6/6 +\S+ +\S+"
    eventually(lambda: re.fullmatch(line, kubectl("get", "pipelines").splitlines()[1].strip()))
    eventually(lambda: kubectl("get", "tablesyncs").count(" Ready ") == len(TABLES))
    head, *lines = kubectl("get", "tablesyncs").splitlines()
    assert head.split() == ["NAME", "PIPELINE", "TABLE", "PHASE", "COPIED", "ROWS", "COPIED", "LAG", "AGE"]
    assert {line.split()[2] for line in lines} == {f"public.{table}" for table in TABLES}
    eventually(lambda: "DriverReady" in kubectl("describe", "pipeline", "shop").split("\nEvents:")[1])

    kubectl("delete", "-f", str(SHOP / "pipeline.yaml"), PATIENCE)
    assert place.slot() is None
    assert place.told("CleanupFinished")
    remains = "pods,jobs,statefulsets,configmaps,services,tablesyncs"
    eventually(lambda: kubectl.get(remains, labels="levada.dev/pipeline") == [])
    assert (place.lake / "shop" / "orders" / "metadata").is_dir()
