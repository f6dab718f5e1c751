"""The cache of the cluster: the newest state of each object, and what a decision observes of it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.operator.samples import (
    DEFAULTS,
    NOON,
    at,
    merge,
    owned_body,
    pipeline,
    pod_body,
    progress,
    table_sync,
    written,
)

from levada_operator.observe.cluster_cache import ClusterCache
from levada_operator.observe.creation import CreationFailure, name_taken
from levada_operator.observe.objects import PipelineKey
from levada_operator.observe.room import NoRoomError

SHOP = PipelineKey("data", "shop")


@pytest.mark.parametrize(
    ("host", "namespace", "other_host", "conflicts"),
    [
        ("db", "data", "db", ("old",)),
        ("db", "shop", "db", ()),
        ("db.data.svc", "data", "db", ("old",)),
        ("DB.data.svc.cluster.local.", "data", "db.data", ("old",)),
        ("db.shop.svc", "shop", "db", ()),
        ("db.example.com", "data", "db.example.com", ("old",)),
        ("db.example.com", "shop", "db.example.com", ()),
        ("fd00::1", "data", "fd00::1", ("old",)),
    ],
)
def test_conflicts_read_the_same_slot_of_the_same_server(
    host: str, namespace: str, other_host: str, conflicts: tuple[str, ...]
) -> None:
    """A host is who it is in the cluster's DNS. A manifest of another namespace proves nothing."""
    cache = ClusterCache(DEFAULTS)
    source = {"slot": {"name": "levada_shop"}}
    new = {"name": "new", "namespace": namespace, "uid": "uid-new", "creationTimestamp": written(at(60))}
    cache.put(pipeline(metadata={"name": "old"}, spec={"source": {**source, "host": other_host}}))
    cache.put(pipeline(metadata=new, spec={"source": {**source, "host": host}}))
    seen = cache.observe(PipelineKey(namespace, "new"), NOON)
    assert seen is not None
    assert seen.conflicts == conflicts


def test_cache_keeps_the_newest_and_forgets_what_is_gone() -> None:
    """An older state of an object, or a list from before a write, takes nothing back."""
    cache = ClusterCache(DEFAULTS)
    new, old = (merge(pipeline(), {"metadata": {"resourceVersion": v, "generation": int(v)}}) for v in ("10", "9"))
    cache.put(new)
    cache.put(old)
    cache.put(table_sync())
    seen = cache.observe(SHOP, NOON)
    assert seen is not None
    assert seen.pipeline.generation == 10
    assert [t.name for t in seen.table_syncs] == ["shop-public-orders"]
    job, driver = owned_body("Job", "shop-lag-1"), owned_body("StatefulSet", "shop-driver")
    cache.replace_owned("StatefulSet", "data", [driver], NOON)
    cache.replace_owned("Pod", "data", [pod_body()], NOON)
    cache.record_writes(SHOP, [job], [], NOON)
    cache.replace_owned("Job", "data", [], at(5))
    seen = cache.observe(SHOP, at(5))
    assert seen is not None
    assert (len(seen.jobs), len(seen.pods)) == (1, 1)
    assert cache.driver_addresses() == [(SHOP, "10.0.0.7")]
    for kind in ("Pod", "Job"):
        cache.replace_owned(kind, "data", [], at(60))
    seen = cache.observe(SHOP, at(60))
    assert seen is not None
    assert (seen.jobs, seen.pods) == ((), ())
    cache.replace_all("Pipeline", "data", [], {}, 10)
    assert cache.observe(SHOP, at(60)) is None


def test_cache_tells_a_change_from_a_status() -> None:
    """A new object and another spec, label or owner are changes. An own write of status is none."""
    cache = ClusterCache(DEFAULTS)
    changes: list[tuple[dict[str, Any], bool]] = [
        ({}, True),
        ({}, False),
        ({"status": {"phase": "Ready"}, "metadata": {"resourceVersion": "11"}}, False),
        ({"spec": {"suspend": True}, "metadata": {"resourceVersion": "12"}}, True),
        ({"spec": {"suspend": True}, "metadata": {"resourceVersion": "13", "labels": {"a": "b"}}}, True),
        ({"spec": {"suspend": False}, "metadata": {"resourceVersion": "9"}}, False),
        ({"metadata": {"resourceVersion": "8", "uid": "another"}}, True),
    ]
    for change, differs in changes:
        body = merge(merge(table_sync(), {"metadata": {"resourceVersion": "10"}}), change)
        assert cache.put(body) is differs, change


def test_table_sync_that_names_another_pipeline_leaves_the_first() -> None:
    """A TableSync belongs to the Pipeline that it names in the stored version alone."""
    cache = ClusterCache(DEFAULTS)
    cache.put(pipeline())
    cache.put(merge(table_sync(), {"metadata": {"resourceVersion": "10"}}))
    cache.put(merge(table_sync("events"), {"metadata": {"resourceVersion": "10"}}))
    other = {"metadata": {"resourceVersion": "11"}, "spec": {"pipelineRef": {"name": "other"}}}
    cache.put(merge(table_sync(), other))
    cache.put(merge(table_sync(), {"metadata": {"resourceVersion": "9"}}))
    seen = cache.observe(SHOP, NOON)
    assert seen is not None
    assert [t.name for t in seen.table_syncs] == ["shop-public-events"]
    cache.drop("TableSync", "data", "shop-public-events")
    cache.drop("TableSync", "data", "shop-public-events")
    seen = cache.observe(SHOP, NOON)
    assert seen is not None
    assert seen.table_syncs == ()


def test_a_list_that_takes_long_removes_nothing_later() -> None:
    """While thousands of objects are listed, others are made, of which the list has none. They stay, and others go."""
    cache = ClusterCache(DEFAULTS)
    cache.put(merge(pipeline(), {"metadata": {"resourceVersion": "20"}}))
    cache.put(merge(table_sync(), {"metadata": {"resourceVersion": "21"}}))
    cache.put(merge(owned_body("Job", "shop-lag-1"), {"metadata": {"resourceVersion": "22"}}))
    for version, stays in ((19, True), (30, False)):
        cache.replace_owned("Job", "data", [], at(-60), version)
        seen = cache.observe(SHOP, NOON)
        assert seen is not None
        assert bool(seen.jobs) is stays
        cache.replace_all("TableSync", "data", [], {}, version)
        assert bool(cache.table_syncs) is stays
        cache.replace_all("Pipeline", "data", [], {}, version)
        assert bool(cache.pipelines) is stays


def test_late_news_of_a_deletion_is_not_of_the_next_object() -> None:
    """The watch may report the end of an object after the next one of that name was created."""
    cache = ClusterCache(DEFAULTS)
    cache.put(merge(pipeline(), {"metadata": {"uid": "uid-new", "resourceVersion": "12"}}))
    cache.put(merge(table_sync(), {"metadata": {"uid": "uid-new", "resourceVersion": "12"}}))
    cache.remove(merge(pipeline(), {"metadata": {"resourceVersion": "11"}}))
    cache.remove(merge(table_sync(), {"metadata": {"resourceVersion": "11"}}))
    seen = cache.observe(SHOP, NOON)
    assert seen is not None
    assert len(seen.table_syncs) == 1
    cache.remove(merge(pipeline(), {"metadata": {"uid": "uid-new", "resourceVersion": "13"}}))
    assert cache.observe(SHOP, NOON) is None


def test_pipelines_that_go_with_the_finalizer() -> None:
    """It was removed by hand, so they are kept until they are forgotten. Without it, the clean-up was done."""
    cache = ClusterCache(DEFAULTS)
    held = merge(pipeline(), {"metadata": {"finalizers": ["levada.dev/cleanup"], "resourceVersion": "11"}})
    cache.put(held)
    cache.put(owned_body("ConfigMap", "shop-manifest"))
    cache.remove(merge(held, {"metadata": {"finalizers": [], "resourceVersion": "12"}}))
    gone = cache.observe_gone(SHOP, NOON)
    assert gone is not None
    assert gone.owned.get("ConfigMap", "shop-manifest")
    cache.forget_gone(SHOP)
    cache.put(held)
    cache.put(merge(held, {"metadata": {"finalizers": [], "resourceVersion": "12"}}))
    cache.remove(held)
    assert cache.observe_gone(SHOP, NOON) is None
    cache.put(held)
    cache.put(merge(held, {"metadata": {"uid": "uid-next", "resourceVersion": "13"}}))
    gone = cache.observe_gone(SHOP, NOON)
    assert gone is not None
    assert gone.pipeline.uid == "uid-shop"


def test_cache_sees_movement_and_conflicts() -> None:
    """Only a position that changes counts as movement. The older of two Pipelines with one slot is the conflict."""
    cache = ClusterCache(DEFAULTS)
    cache.put(pipeline())
    cache.record_progress(SHOP, progress(fetched=0))
    cache.record_progress(SHOP, progress(fetched=30))
    seen = cache.observe(SHOP, at(30))
    assert seen is not None
    assert seen.moved_at == NOON
    younger = merge(pipeline(), {"metadata": {"name": "copy", "uid": "u2", "creationTimestamp": "2026-01-31T11:59:00Z"},
                                 "spec": {"source": {"slot": {"name": "levada_data__shop"}}}})  # fmt: skip
    cache.put(younger)
    other = cache.observe(PipelineKey("data", "copy"), at(30))
    assert other is not None
    assert other.conflicts == ("shop",)
    seen = cache.observe(SHOP, at(30))
    assert seen is not None
    assert seen.conflicts == ()


def test_a_crowded_namespace_is_told_once_and_written_to_no_more() -> None:
    """Without room for its status, a TableSync without a Pipeline is forgotten: it would be written for ever.

    One of a Pipeline stays as it was read last, because without it its table would be copied with the defaults.
    """
    cache, wide = ClusterCache(DEFAULTS), {"metadata": {"annotations": {"a": "x" * 200_000}}}
    crowd = [merge(table_sync(f"t{n}", owned=False), wide) for n in range(300)]
    for body in crowd:
        body["spec"]["pipelineRef"]["name"] = "none"
    faults = {text for _, text in cache.put_all(crowd)}
    assert faults == {"the namespace has too many of the operator's objects, so some of kind TableSync are ignored"}
    lone = cache.lone_tables(PipelineKey("data", "none"))
    larger = {"metadata": {"resourceVersion": "10", "annotations": {"a": "x" * 500_000}}}
    with pytest.raises(NoRoomError):
        cache.put(merge(crowd[0], larger))
    assert len(cache.lone_tables(PipelineKey("data", "none"))) == len(lone) - 1
    cache.put(pipeline())
    cache.put(merge(table_sync(), {"metadata": {"resourceVersion": "1"}}))
    cache.record_writes(SHOP, [merge(table_sync(), larger)] * 2, [], NOON)
    seen = cache.observe(SHOP, NOON)
    assert seen is not None
    assert [t.name for t in seen.table_syncs] == ["shop-public-orders"]
    assert [text for text in seen.faults if "TableSync" in text] == [*faults]


def test_unread_settings_of_tables_are_known() -> None:
    """One without settings of its table holds nothing, nor does one that has become smaller or is gone."""
    cache = ClusterCache(DEFAULTS)
    cache.put(pipeline())

    def seen(key: PipelineKey = SHOP) -> str:
        found = cache.observe(key, NOON)
        assert found is not None
        return found.unread_tables

    wide = {"metadata": {"annotations": {"a": "x" * 40_000_000}}}
    with pytest.raises(NoRoomError):
        cache.put(merge(table_sync(), wide))
    assert seen() == ""
    masked = table_sync(columns={"exclude": ["ssn"]})
    with pytest.raises(NoRoomError):
        cache.put(merge(masked, wide))
    assert seen().startswith("TableSync shop-public-orders: the namespace has too many")
    cache.put(masked)
    assert seen() == ""
    cache.replace_all("TableSync", "data", [masked], {"b": "it has more than 1024 KiB"}, 99)
    assert seen() == "TableSync b: it has more than 1024 KiB"
    cache.drop("TableSync", "data", "b")
    assert seen() == ""


def test_cache_finds_the_pods_that_cannot_be_created() -> None:
    """A StatefulSet or a Job without its pod has the newest failure of its own. One with a pod has none."""
    cache = ClusterCache(DEFAULTS)
    cache.put(pipeline())
    cache.put(owned_body("StatefulSet", "shop-driver", spec={"replicas": 1}))
    cache.put(owned_body("Job", "shop-cleanup", spec={}))
    assert cache.without_pods("data")
    s, j = "uid-shop-driver", "uid-shop-cleanup"
    failures = [CreationFailure(u, f"{u[-1]} {n}", at(n)) for u, n in ((s, 5), (s, 9), (j, 7), ("other", 8))]
    cache.record_creation_failures("data", failures)

    def found() -> dict[str, str]:
        seen = cache.observe(SHOP, NOON)
        assert seen is not None
        return {k.kind: f.message for k, f in seen.creation_failures.items()}

    assert found() == {"StatefulSet": "r 9", "Job": "p 7"}
    cache.put(pod_body())
    assert found() == {"Job": "p 7"}
    of_job = {"ownerReferences": [{"uid": j}]}
    cache.put(merge(pod_body("cleanup", "shop-cleanup-x"), {"metadata": of_job}))
    assert found() == {}
    assert not cache.without_pods("data")


def test_pod_that_has_the_name_of_the_drivers() -> None:
    """Kubernetes gives up a pod whose labels were changed, and makes no other one. The message has the command."""
    owner = {"metadata": {"name": "shop-driver", "uid": "u"}}
    metadata = {"name": "shop-driver-0", "namespace": "data"}
    failure = name_taken(owner, [{"metadata": metadata}], NOON)
    assert failure is not None
    assert (failure.owner_uid, failure.at) == ("u", NOON)
    assert failure.message.endswith("delete it: kubectl -n data delete pod shop-driver-0")
    ends = {**metadata, "deletionTimestamp": "2026-01-31T11:59:00Z"}
    of_former = {**metadata, "ownerReferences": [{"kind": "StatefulSet", "name": "shop-driver", "uid": "former"}]}
    assert name_taken(owner, [{"metadata": ends}, {"metadata": of_former}], NOON) is None
