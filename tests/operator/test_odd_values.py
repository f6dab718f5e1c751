"""Decisions about Pipelines and TableSyncs with odd values, as an old schema may have let them in."""

from __future__ import annotations

import contextlib
from typing import Any, Final

import pytest
from tests.operator.odd_values import ODD, paths, with_odd_value
from tests.operator.samples import DEFAULTS, NOON

from levada_operator.decide.reconcile import reconcile
from levada_operator.observe.cluster_cache import ClusterCache
from levada_operator.observe.objects import PipelineKey, pipeline_named

SHOP: Final = PipelineKey("data", "shop")
_EVERY: Final = 5
"""Every so many values of a field are tried. Of its neighbours it is other ones."""
_MAX_MESSAGE: Final = 4096


def _accepted(status: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(c for c in status["conditions"] if c["type"] == "Accepted")
    return found


def _decided(kind: str, path: tuple[str, ...], value: object) -> dict[str, Any]:
    """Return the condition of the object with the value, or of the Pipeline if the TableSync is none of its own."""
    cache = ClusterCache(DEFAULTS)
    one, table = with_odd_value(kind, path, value)
    cache.put(one)
    with contextlib.suppress(ValueError):
        cache.put(table)
    seen = cache.observe(SHOP, NOON)
    assert seen is not None
    plan = reconcile(seen)
    for made in (*plan.apply, *plan.rehearse):
        place = made["metadata"]
        assert (place["namespace"], place["name"].partition("-")[0]) == SHOP
        assert {subject["namespace"] for subject in made.get("subjects", ())} <= {SHOP.namespace}
    found = {write.key.kind: write.status for write in plan.statuses}
    if kind == "TableSync" and pipeline_named(table) == SHOP:
        return _accepted(found["TableSync"])
    return _accepted(found["Pipeline"])


@pytest.mark.sampled
@pytest.mark.parametrize("kind", ["Pipeline", "TableSync"])
def test_every_odd_value_is_decided(kind: str) -> None:
    """Whatever a field holds, its object says whether the spec is accepted, and if not, why, in a text of bounds."""
    wrong = []
    for number, path in enumerate(paths(kind)):
        for value in ODD[number % _EVERY :: _EVERY]:
            try:
                accepted = _decided(kind, path, value)
            except Exception as error:
                wrong.append((path, str(value)[:40], repr(error)[:200]))
                continue
            text = accepted["message"]
            if (
                (not text and accepted["status"] != "True")
                or len(text) > _MAX_MESSAGE
                or not text.replace("\n", "").isprintable()
            ):
                wrong.append((path, str(value)[:40], text[:200]))
    assert wrong == []
