"""A hostile tenant with the role edit in her namespace, next to a Pipeline of another one, under one operator."""

from __future__ import annotations

import base64
import bz2
import threading
from typing import Any, Final

import pytest
from tests.cluster.api.pipelines import condition, events, shop
from tests.cluster.kubectl import Kubectl, eventually
from tests.cluster.tenants import hostile
from tests.cluster.tenants.drivers import ANSWERS, odd_driver
from tests.cluster.tenants.place import Place
from tests.operator.odd_status import TIMES, written_by_hand

from levada.spec import manifest_digest

LONE: Final = 400
FEW: Final = 40


@pytest.mark.parametrize("owned", [False, True])
def test_time_that_is_none(place: Place, owned: bool) -> None:
    """A StatefulSet with words for a time, a stranger's or a Pipeline's own, ends no sweep."""
    name, annotations = f"a{owned}".lower(), {"levada.dev/updated-at": "yesterday"}
    if owned:
        place.tenant.pipeline(name, suspend=True)
        eventually(lambda: place.tenant.kubectl.get("statefulset", f"{name}-driver"))
    else:
        place.tenant.create(hostile.stateful_set(f"{name}-driver"))
    place.tenant.patch(
        "statefulset", f"{name}-driver", {"metadata": {"annotations": annotations}, "spec": {"replicas": 1}}
    )
    place.holds()


def test_annotation_that_unpacks_to_gigabytes(place: Place) -> None:
    """A record of a kilobyte that unpacks to 1.5 GiB takes no memory, a stranger's and a Pipeline's own."""
    bomb = {"levada.dev/accepted": hostile.bomb(32)}
    place.tenant.create(hostile.stateful_set("b-driver", annotations=bomb))
    place.tenant.pipeline("b", suspend=True)
    own = place.tenant.pipeline("bo", suspend=True)
    place.tenant.create(hostile.stateful_set("bo2-driver", owner=own, annotations=bomb))
    eventually(lambda: place.tenant.kubectl.get("configmap", "bo-manifest"))
    for _ in range(3):
        place.tenant.patch("statefulset", "bo-driver", {"metadata": {"annotations": bomb}})
        place.tenant.delete("configmap", "bo-manifest")
        place.operator.swept_twice()
    place.holds()


def test_template_of_thousands_of_variables(place: Place) -> None:
    """They are 45 kB, which are compared with the StatefulSet in each pass, and which delay no other namespace."""
    variables = [{"name": f"A{number}"} for number in range(3000)]
    template = {"podTemplate": {"spec": {"containers": [{"name": "driver", "env": variables}]}}}
    place.tenant.pipeline("v", suspend=True, driver=template)
    eventually(lambda: condition(place.tenant.kubectl, "Suspended", "v") == ("True", "Drained"))
    place.operator.swept_twice()
    place.holds()


ALIASES = "\n".join(["a0: &a0 {x: 1}", *(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}" for n in range(1, 60))])
BOMBS = {"y": ALIASES, "w": "kind: Pipeline\na: [" + "x," * 480_000 + "]", "z": ("- " * 250 + "x\n") * 1900}


@pytest.mark.parametrize("name", BOMBS)
def test_manifest_that_expands_when_it_is_parsed(place: Place, name: str) -> None:
    """A ConfigMap, and a record of a few bytes, both with their digests, take neither memory nor time."""
    text = BOMBS[name]
    packed = base64.b64encode(bz2.compress(text.encode())).decode()
    place.tenant.pipeline(name, suspend=True)
    eventually(lambda: place.tenant.kubectl.get("statefulset", f"{name}-driver"))
    for _ in range(3):
        place.tenant.patch(
            "statefulset", f"{name}-driver", {"metadata": {"annotations": {"levada.dev/accepted": packed}}}
        )
        annotations = {"levada.dev/manifest": manifest_digest(text.encode())}
        changed = {"metadata": {"annotations": annotations}, "data": {"pipeline.yaml": text}}
        place.tenant.patch("configmap", f"{name}-manifest", changed)
        place.operator.swept_twice()
    place.holds()
    eventually(
        lambda: "kind: Pipeline" in place.tenant.kubectl.get("configmap", f"{name}-manifest")["data"]["pipeline.yaml"]
    )


@pytest.mark.parametrize("answer", ANSWERS)
def test_driver_that_answers_oddly(place: Place, answer: str) -> None:
    """An answer that does not end, and one that takes much memory, are given up. A stranger's pod is never asked."""
    name = f"cd{answer.replace(' ', '').lower()}"
    number = ANSWERS.index(answer) + 1
    with odd_driver(f"127.78.0.{number}", answer) as own, odd_driver(f"127.78.1.{number}", answer) as stranger:
        place.tenant.pipeline(name)
        stateful_set = eventually(lambda: place.tenant.kubectl.get("statefulset", f"{name}-driver"))
        place.make_pod(hostile.pod(f"{name}-driver-0", maker=stateful_set), own.address)
        place.tenant.pipeline(f"{name}2")
        # The StatefulSet's controller adopts a pod only if its name ends with a number.
        place.make_pod(hostile.pod(f"{name}2-driver-zero", pipeline=f"{name}2"), stranger.address)
        eventually(lambda: len(own.asked) >= 2)
        place.holds()
        assert not stranger.asked
        assert not any("Authorization" in asked for asked in own.asked)


def test_config_maps_of_a_megabyte(place: Place) -> None:
    """180 ConfigMaps with the label, of a megabyte each, are never in the operator's memory."""
    own = place.tenant.pipeline("e", suspend=True)
    for number, body in enumerate(hostile.config_maps(180, 1_000_000)):
        place.tenant.create(body | {"metadata": hostile.claimed(f"e-{number}", "ConfigMap", owner=own)["metadata"]}
                            if number % 2 else body)  # fmt: skip
    place.operator.stop()
    place.operator.start()
    place.holds()
    place.tenant.kubectl.delete_all("configmaps")


def test_slot_that_another_namespace_names(place: Place) -> None:
    """A manifest that names another tenant's server and slot changes nothing there, whichever is the older."""
    slot = {"name": "levada_bank__bank"}
    place.tenant.pipeline("f", suspend=True, source={"host": "bank-db.bank", "slot": slot})
    place.honest.apply(shop("bank", source={"host": "bank-db.bank", "slot": slot}))
    eventually(lambda: condition(place.honest, "Accepted", "bank") == ("True", "Valid"))
    eventually(lambda: place.honest.get("statefulset", "bank-driver"))
    assert place.tenant.kubectl.namespace not in str(place.honest.get("pipeline", "bank")["status"])


def test_pipelines_that_are_too_large(place: Place) -> None:
    """Pipelines of a megabyte, and one that is nested too deeply, say so, and are not kept."""
    wide = {f"k{n}": "x" * 1000 for n in range(1100)}
    for number in range(12):
        template = {"podTemplate": {"metadata": {"annotations": wide}}}
        place.tenant.pipeline(f"large-{number}", suspend=True, driver=template)
    place.tenant.pipeline("deep", suspend=True, driver={"podTemplate": {"spec": {"x": hostile.deep(200)}}})
    eventually(lambda: condition(place.tenant.kubectl, "Accepted", "large-7")[0] == "False")
    eventually(lambda: condition(place.tenant.kubectl, "Accepted", "deep")[0] == "False")
    place.operator.stop()
    place.operator.start()
    place.holds()


@pytest.mark.parametrize("time", TIMES)
def test_status_that_was_written_by_hand(place: Place, time: str) -> None:
    """The account of a driver may write it, and each pod of its namespace can have that account. It does not stay."""
    kubectl, name = place.tenant.kubectl, f"h{TIMES.index(time)}"
    place.tenant.pipeline(name, suspend=True)
    place.tenant.create({
        "apiVersion": "levada.dev/v1alpha1", "kind": "TableSync", "metadata": {"name": name},
        "spec": {"pipelineRef": {"name": name}, "table": {"schema": "public", "name": "orders"}},
    })  # fmt: skip
    # Before it is Drained, the operator's own statuses follow.
    eventually(lambda: condition(kubectl, "Suspended", name) == ("True", "Drained"))
    of_pipeline, of_table = written_by_hand(time)
    kubectl.patch("pipeline", name, {"status": of_pipeline}, "status")
    kubectl.patch("tablesync", name, {"status": of_table}, "status")
    eventually(lambda: condition(kubectl, "Ready", name) == ("False", "Suspended"))
    eventually(lambda: kubectl.get("tablesync", name)["status"]["phase"] == "Suspended")
    place.holds()


def test_owner_in_another_namespace(place: Place) -> None:
    """Objects that name another tenant's Pipeline as their owner, by its UID, change nothing of it."""
    honest = place.honest.get("pipeline", "shop")
    before = place.honest.get("configmap", "shop-manifest")["data"]
    place.tenant.create(hostile.stateful_set("shop-driver", owner=honest))
    body = hostile.claimed("shop-public-orders", "TableSync", owner=honest)
    place.tenant.create(body | {
        "apiVersion": "levada.dev/v1alpha1",
        "spec": {"pipelineRef": {"name": "shop"}, "table": {"schema": "public", "name": "orders"}, "suspend": True},
    })  # fmt: skip
    place.tenant.create(hostile.claimed("shop-manifest", "ConfigMap", owner=honest) | {"data": before})
    place.holds()
    after = place.honest.get("configmap", "shop-manifest")["data"]["pipeline.yaml"]
    assert "kind: TableSync" not in after
    eventually(lambda: not events(place.honest, "ObjectsUnread"))
    eventually(lambda: not events(place.honest, "ReconcileFailed"))


def test_pipelines_that_are_deleted_and_made_again(place: Place) -> None:
    """With long names, large annotations and finalizers that keep deleted ones, they let no other tenant wait."""
    asks = {f"levada.dev/{name}": "é" * 15_000 for name in ("approve", "take-over-from", "paused", "operator")}
    with pytest.raises(AssertionError, match=r"metadata\.name"):
        place.tenant.pipeline("n" * 253, suspend=True)
    for _ in range(5):
        place.tenant.pipeline("again", suspend=True, approval="Manual")
        place.tenant.patch("pipeline", "again", {"metadata": {"annotations": asks}})
        place.reconciled()
        place.tenant.delete("pipeline", "again")
        place.tenant.patch("pipeline", "again", {"metadata": {"finalizers": None}})
    kept = place.tenant.pipeline("kept", suspend=True)
    eventually(lambda: place.tenant.kubectl.get("statefulset", "kept-driver"))
    place.tenant.patch("pipeline", "kept", {"metadata": {"finalizers": ["example.com/never"]}})
    place.tenant.delete("pipeline", "kept")
    place.tenant.create(hostile.stateful_set("kept-driver-2", owner=kept))
    place.holds()
    place.tenant.patch("pipeline", "kept", {"metadata": {"finalizers": None}})


def test_pipelines_that_are_changed_all_the_time(place: Place) -> None:
    """Large ones, by several hands at once. Another namespace's change waits for none of them."""
    dense = {"podTemplate": {"spec": {"x": [0] * 150_000}}}
    over = threading.Event()

    def change(name: str) -> None:
        number = 0
        while not over.is_set():
            number += 1
            place.tenant.patch("pipeline", name, {"metadata": {"annotations": {"turn": str(number)}}})

    names = [f"busy-{number}" for number in range(4)]
    for name in names:
        place.tenant.pipeline(name, suspend=True, driver=dense)
    threads = [threading.Thread(target=change, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    try:
        for _ in range(2):
            place.holds()
    finally:
        over.set()
        for thread in threads:
            thread.join()
    # What the watch has left out is seen by a list.
    place.tenant.pipeline("after", suspend=True)
    eventually(lambda: condition(place.tenant.kubectl, "Suspended", "after") == ("True", "Drained"))
    for name in names:
        place.tenant.delete("pipeline", name)


def test_many_table_syncs_without_a_pipeline(place: Place) -> None:
    """Those of a tenant, of many names, delay another namespace's by no more than one write each."""
    place.operator.stop()
    for number in range(LONE):
        place.tenant.create(lone_table(f"flood-{number}", f"none-{number % 30}"))
    for number in range(FEW):
        place.honest.create(lone_table(f"few-{number}", "none"))
    place.operator.start()

    def answered(kubectl: Kubectl, prefix: str) -> list[int]:
        """Return the versions in which each has its status. They grow with each write to the cluster."""
        found = [t for t in kubectl.get("tablesyncs") if t["metadata"]["name"].startswith(prefix)]
        return [int(t["metadata"]["resourceVersion"]) for t in found if t["status"].get("conditions")]

    eventually(lambda: len(answered(place.honest, "few-")) == FEW)
    eventually(lambda: len(answered(place.tenant.kubectl, "flood-")) == LONE)
    last = max(answered(place.honest, "few-"))
    assert sum(version < last for version in answered(place.tenant.kubectl, "flood-")) < LONE // 2
    place.holds()
    for kubectl in (place.honest, place.tenant.kubectl):
        kubectl.delete_all("tablesyncs")


def lone_table(name: str, pipeline: str) -> dict[str, Any]:
    """Return a TableSync of that Pipeline."""
    return {
        "apiVersion": "levada.dev/v1alpha1", "kind": "TableSync", "metadata": {"name": name},
        "spec": {"pipelineRef": {"name": pipeline}, "table": {"schema": "public", "name": name}},
    }  # fmt: skip


def test_table_sync_without_a_pipeline(place: Place) -> None:
    """It says that there is none. Its status changes when there is one."""
    place.tenant.create(lone_table("lone", "later"))

    def accepted() -> str:
        conditions = place.tenant.kubectl.get("tablesync", "lone").get("status", {}).get("conditions", ())
        return next((c["reason"] for c in conditions if c["type"] == "Accepted"), "")

    eventually(lambda: accepted() == "NoPipeline")
    place.tenant.pipeline("later", suspend=True)
    eventually(lambda: accepted() == "Valid")
