"""The list of deleted Pipelines whose clean-up was given up."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.operator.samples import NOON

from levada_operator.act.elector import LeaseKey
from levada_operator.act.metrics import ABANDONED
from levada_operator.app.abandoned import MAX_OF_NAMESPACE, AbandonedCleanups
from levada_operator.kube.interface import RequestFailed
from levada_operator.observe.objects import Body, PipelineKey

LEASE = LeaseKey("levada-system", "levada-operator")
SHOP = PipelineKey("data", "shop")


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


def add(cluster: ConfigMaps, *keys: PipelineKey, message: str = "run SQL") -> None:
    """Add these, and count."""

    async def script() -> None:
        with ThreadPoolExecutor(1) as executor:
            listed = AbandonedCleanups(cluster, executor, LEASE)  # type: ignore[arg-type]  # it uses two requests
            for key in keys:
                await listed.add(key, message, NOON)
            await listed.count()

    asyncio.run(script())


def test_an_entry_stays_until_it_is_taken_off() -> None:
    """Each has the time and the message. Another one leaves it there, also after the operator restarted."""
    cluster = ConfigMaps()
    add(cluster, SHOP)
    add(cluster, PipelineKey("data", "mall"))
    assert cluster.entries == dict.fromkeys(("data.shop", "data.mall"), "2026-01-31T12:00:00Z run SQL")
    assert ABANDONED.collect()[0].samples[0].value == 2
    del cluster.entries["data.shop"]
    add(cluster)
    assert [*cluster.entries] == ["data.mall"]
    assert ABANDONED.collect()[0].samples[0].value == 1


def test_a_namespace_does_not_fill_the_list() -> None:
    """Its entries are limited, and those of others and the last message of each still have room."""
    cluster = ConfigMaps()
    add(cluster, *(PipelineKey("data", f"p{number}") for number in range(MAX_OF_NAMESPACE + 5)))
    add(cluster, PipelineKey("data", "p0"), PipelineKey("bank", "shop"), message="x" * 5000)
    assert len(cluster.entries) == MAX_OF_NAMESPACE + 1
    assert max(map(len, cluster.entries.values())) == 1024


def test_a_deletion_does_not_fail_with_the_list() -> None:
    """A list that cannot be read or written is logged."""
    add(ConfigMaps(RequestFailed(403, "no right")), SHOP)
