"""Verifications and cuts, as a user of kubectl meets them."""

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
