"""The list of deleted Pipelines whose clean-up was given up."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.operator.samples import DEFAULTS, pipeline

from levada.status.orphans import Orphan, read_orphans
from levada_operator.act.elector import LeaseKey
from levada_operator.act.metrics import ABANDONED
from levada_operator.app.abandoned import AbandonedCleanups, fitting
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

    def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        if self.failure is not None:
            raise self.failure
        return self.found.get((namespace, name))

    def apply(self, body: Body) -> dict[str, Any]:
        self.found[body["metadata"]["namespace"], body["metadata"]["name"]] = dict(body)
        return dict(body)

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
