"""The list of deleted Pipelines whose clean-up was given up."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.operator.samples import DEFAULTS, pipeline

from levada.errors import NeedsOperator
from levada.status.orphans import Orphan, orphan_lines, read_orphans
from levada_operator.act.elector import LeaseKey
from levada_operator.act.metrics import ABANDONED
from levada_operator.app.abandoned import AbandonedCleanups, fitting
from levada_operator.app.orphans import COMMAND, left_after
from levada_operator.kube.interface import RequestFailed
from levada_operator.observe.cluster_cache import ClusterCache
from levada_operator.observe.objects import Body

LEASE = LeaseKey("levada-system", "levada-operator")


def orphan(
    name: str = "shop", namespace: str = "data", uid: str = "1", since: str = "2026", what: str = "SQL"
) -> Orphan:
    """Return an entry."""
    return Orphan(namespace, name, uid, since, f"run {what}")


SHOP = orphan()


class ConfigMaps:
    """A `Cluster` with ConfigMaps alone. ``failure`` is that of every request."""

    def __init__(self, failure: RequestFailed | None = None) -> None:
        self.failure = failure
        self.found: dict[tuple[str, str], dict[str, Any]] = {}
        self.late: Orphan | None = None
        """An entry that is added between the next read and the next write."""

    def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        if self.failure is not None:
            raise self.failure
        return self.found.get((namespace, name))

    def apply(self, body: Body) -> dict[str, Any]:
        place = body["metadata"]["namespace"], body["metadata"]["name"]
        there = self.found.get(place, {"metadata": {"resourceVersion": "0"}, "data": {}})
        version = there["metadata"]["resourceVersion"]
        if self.late is not None:
            there["data"], version, self.late = there["data"] | {self.late.key: self.late.text}, version + "1", None
            there["metadata"]["resourceVersion"] = version
        if body["metadata"].get("resourceVersion", version) != version:
            raise RequestFailed(409, "the object has been modified")
        self.found[place] = {**body, "metadata": {**body["metadata"], "resourceVersion": version + "1"}}
        return self.found[place]

    @property
    def entries(self) -> dict[str, str]:
        """The list."""
        found: dict[str, str] = self.found["levada-system", "levada-operator-abandoned"]["data"]
        return found


def add(cluster: ConfigMaps, *orphans: Orphan, taken_over: Collection[tuple[str, str]] = ()) -> None:
    """Add these, and review the list."""

    async def script() -> None:
        with ThreadPoolExecutor(1) as executor:
            listed = AbandonedCleanups(cluster, executor, LEASE)  # type: ignore[arg-type]  # it uses two requests
            for each in orphans:
                await listed.add(each)
            await listed.review(taken_over)

    asyncio.run(script())


def count() -> float:
    """Return the metric."""
    return ABANDONED.collect()[0].samples[0].value


def test_an_entry_stays_until_it_is_taken_off() -> None:
    """Each has the time and the message. Another one leaves it there, also after the operator restarted."""
    cluster = ConfigMaps()
    add(cluster, SHOP)
    add(cluster, orphan("mall"))
    assert cluster.entries == {"data.shop.1": "2026 run SQL", "data.mall.1": "2026 run SQL"}
    assert [*read_orphans(cluster.entries)] == [orphan("mall"), SHOP]
    assert count() == 2
    del cluster.entries["data.shop.1"]
    add(cluster)
    assert [*cluster.entries] == ["data.mall.1"]
    assert count() == 1


def test_pipelines_of_one_name_have_an_entry_each() -> None:
    """A Pipeline that was deleted and made again under its name may leave another slot each time."""
    cluster = ConfigMaps()
    add(cluster, SHOP, orphan(uid="2", what="other SQL"))
    assert [*cluster.entries.values()] == ["2026 run SQL", "2026 run other SQL"]


def test_what_another_pipeline_took_over_is_taken_off() -> None:
    """Its SQL would drop a living Pipeline's slot. One of another namespace, or one that is not Ready, is no proof."""
    cluster, cache = ConfigMaps(), ClusterCache(DEFAULTS)

    def heir(namespace: str, status: str) -> None:
        body = pipeline(namespace=namespace, status={"conditions": [{"type": "Ready", "status": status}]})
        body["metadata"] |= {"annotations": {"levada.dev/take-over-from": " 1 "}, "uid": f"of {namespace}"}
        body["metadata"]["resourceVersion"] = str(len(status))
        body["status"]["conditions"][0]["lastTransitionTime"] = "2026-01-31T12:00:00Z"
        cache.put(body)

    heir("mallory", "True")
    heir("data", "False")
    add(cluster, SHOP, taken_over=cache.taken_over())
    assert [*cluster.entries] == ["data.shop.1"]
    cache = ClusterCache(DEFAULTS)
    heir("data", "True")
    add(cluster, orphan("mall", uid="2"), taken_over=cache.taken_over())
    assert [*cluster.entries] == ["data.mall.2"]


def test_a_namespace_does_not_fill_the_list() -> None:
    """Beyond the room the namespace with most entries loses its oldest ones, also for those of others."""
    many = [orphan(f"p{number}", since=str(2000 + number)) for number in range(10, 30)]
    size = len(many[0].key) + len(many[0].text)
    kept: dict[str, Orphan] = {}
    for each in (*many, orphan("shop", "bank", since="1999")):
        kept = fitting(kept | {each.key: each}, each, most=10 * size + 5)
    assert [o.pipeline for o in kept.values()] == [*(f"p{number}" for number in range(21, 30)), "shop"]


def test_a_deletion_does_not_fail_with_the_list() -> None:
    """A list that cannot be read or written is logged."""
    add(ConfigMaps(RequestFailed(403, "no right")), SHOP)


def test_entries_are_taken_off_within_the_pod() -> None:
    """By the operator's own client, also if one is added meanwhile. A UID that is not listed changes nothing."""
    cluster = ConfigMaps()
    add(cluster, SHOP, orphan("mall", uid="2"))
    assert left_after(cluster, LEASE, ()) == [orphan("mall", uid="2"), SHOP]  # type: ignore[arg-type]  # as above
    with pytest.raises(NeedsOperator, match=f"{COMMAND} prints the UIDs"):
        left_after(cluster, LEASE, ("1", "3"))  # type: ignore[arg-type]  # as above
    cluster.late = orphan("late", uid="4")
    left = left_after(cluster, LEASE, ("1",))  # type: ignore[arg-type]  # as above
    assert [each.uid for each in left] == ["4", "2"]
    assert [*cluster.entries] == ["data.late.4", "data.mall.2"]


def test_the_list_is_text() -> None:
    """A name or a driver's message that a tenant chose sends no commands to the terminal of an administrator."""
    lines = orphan_lines([orphan(what="\x1b]0;title\x07 SQL\nx")])
    assert all(line.isprintable() for line in lines[1].splitlines())
    assert lines[-1] == "Once it is removed, take it off the list: levada orphans --forget 1"
