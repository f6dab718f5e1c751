"""Verifications, cuts and the guard, as a user of kubectl meets them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.cluster.kubectl import eventually
from tests.cluster.node.place import Place

pytestmark = pytest.mark.long


def table(place: Place, name: str) -> dict[str, Any]:
    """Return the status of a TableSync."""
    return dict(place.kubectl.get("tablesync", f"shop-public-{name}").get("status") or {})


def verified(place: Place, name: str) -> tuple[str, str]:
    """Return status and reason of the condition Verified of a table."""
    found = table(place, name).get("conditions", ())
    return next(((c["status"], c["reason"]) for c in found if c["type"] == "Verified"), ("", ""))


def test_verifications_and_cuts_by_kubectl(shop: Place) -> None:
    """A nonce requests a comparison, whose result the columns show. A cut is listed, and is the status's newest one."""
    nonce = int(table(shop, "orders").get("verifyNonce") or 0) + 1
    shop.kubectl.patch("tablesync", "shop-public-orders", {"spec": {"verifyNonce": nonce}})
    eventually(lambda: table(shop, "orders").get("verifyNonce") == nonce)
    eventually(lambda: verified(shop, "orders") == ("True", "Equal"))
    head, line = shop.kubectl("get", "tablesync", "shop-public-orders", "-o", "wide").splitlines()
    assert (head.split()[-2:], line.split()[-1]) == (["VERIFIED", "EQUAL"], "true")
    manifest = "/etc/levada/pipeline.yaml"
    assert "complete at 0/" in shop.in_driver("levada", "cut", manifest, "month_end")
    (cut,) = json.loads(shop.in_driver("levada", "cuts", "-o", "json"))["cuts"]
    assert (cut["name"], cut["phase"]) == ("month_end", "Complete")
    eventually(lambda: shop.status().get("cuts", {}).get("lastComplete", {}).get("name") == "month_end")
    shop.in_driver("levada", "cut", manifest, "month_end", "--drop")
    eventually(lambda: "month_end" not in shop.in_driver("levada", "cuts"))


def test_a_passed_limit_of_the_guard(shop: Place) -> None:
    """It is a condition and an Event, while the driver runs and while the Pipeline is suspended. It ends by itself."""
    staged = {"guard": {"staged": {"warn": 10, "pauseCopies": 20}}}
    shop.patch(**staged)

    def passed() -> bool:
        # The driver reads of the suspension up to a minute later. From then on the changes of the table stay staged.
        shop.execute("UPDATE orders SET note = coalesce(note, '') || '.'")
        return shop.condition("WithinLimits") == ("False", "PauseCopies")

    shop.kubectl.patch("tablesync", "shop-public-orders", {"spec": {"suspend": True}})
    eventually(passed, 300)
    assert "guard.staged.pauseCopies" in shop.message("WithinLimits")
    assert eventually(lambda: shop.events("LimitPassed"))
    shop.kubectl.patch("tablesync", "shop-public-orders", {"spec": {"suspend": False}})
    shop.reaches("WithinLimits", "True", "NoLimitPassed")
    shop.patch(suspend=True, health={"lagProbeSeconds": 10}, guard={"staged": None, "retainedWal": {"warn": 1 << 20}})
    shop.reaches("Suspended", "True", "Drained")
    shop.execute("SELECT pg_logical_emit_message(false, 'test', repeat('x', 1048576)) FROM generate_series(1, 3)")
    shop.reaches("WithinLimits", "False", "Warn")
    assert "pg_drop_replication_slot" in shop.message("WithinLimits")
    shop.patch(suspend=False, guard=None)
    shop.reaches("WithinLimits", "True", "NoLimitPassed")
    shop.ready()
    shop.equal()
