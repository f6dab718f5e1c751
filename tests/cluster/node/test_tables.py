"""One table is dealt with, by its TableSync, while the others go on."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cluster.kubectl import eventually
from tests.cluster.node.lake import read_table
from tests.cluster.node.place import SHOP, TABLES, Place
from traffic import Traffic  # type: ignore[import-not-found]

pytestmark = pytest.mark.nightly

assert SHOP  # the example's folder is on the path by its import


def table_sync(table: str, **spec: Any) -> dict[str, Any]:
    """Return a TableSync as a user writes it."""
    name = f"shop-public-{table.replace('_', '-')}"
    reference = {"pipelineRef": {"name": "shop"}, "table": {"schema": "public", "name": table}}
    body = {"apiVersion": "levada.dev/v1alpha1", "kind": "TableSync", "metadata": {"name": name}}
    return body | {"spec": reference | spec}


def of_table(place: Place, table: str) -> dict[str, Any]:
    """Return the TableSync of a table, a user's or the operator's. Empty if there is none."""
    found = (t for t in place.kubectl.get("tablesyncs") if t["spec"]["table"]["name"] == table)
    return next(found, {})


def status(place: Place, table: str) -> dict[str, Any]:
    """Return the status of a table's TableSync."""
    return dict(of_table(place, table).get("status", {}))


def patch(place: Place, table: str, **spec: Any) -> None:
    """Change a table's TableSync."""
    place.kubectl.patch("tablesync", of_table(place, table)["metadata"]["name"], {"spec": spec})


def test_dedicated_copy_is_made_by_a_job(place: Place) -> None:
    """A pod of its own copies the largest table under writers. Then the driver streams it as all others."""
    place.kubectl.apply(table_sync("order_items", copy={"driver": "Dedicated"}))
    traffic = Traffic(place.server.uri("shop")).start()
    place.apply()
    job = eventually(lambda: place.kubectl.get("jobs", labels="levada.dev/role=copy"))[0]["metadata"]["name"]
    place.ready()
    traffic.stop()
    # Its controller may count the pod a moment later than the driver knows of the copy.
    eventually(lambda: place.kubectl.get("job", job)["status"].get("succeeded") == 1)
    place.equal()


def test_table_is_copied_again_while_it_is_served(shop: Place) -> None:
    """A new resyncNonce copies the table once more: all the while its readers see it whole, and others stream."""
    eventually(lambda: status(shop, "customers").get("phase") == "Ready")
    uid, restarts = shop.driver_uid(), shop.restarts()
    before = read_table(shop.lake, "shop", "customers")
    assert before is not None
    traffic = Traffic(shop.server.uri("shop")).start()
    patch(shop, "customers", resyncNonce=7)

    def done() -> bool:
        now = read_table(shop.lake, "shop", "customers")
        assert now is not None
        assert now.num_rows >= before.num_rows
        told = status(shop, "customers")
        assert told["phase"] == "Ready"
        return told.get("resyncNonce") == 7 and "resync" not in told

    eventually(done)
    traffic.stop()
    shop.equal()
    assert (shop.driver_uid(), shop.restarts()) == (uid, restarts)


def test_table_rests_while_others_stream(shop: Place) -> None:
    """A suspended table stays as it is, and its changes are kept. After it resumes, it has them all."""
    eventually(lambda: status(shop, "baskets").get("phase") == "Ready")
    uid = shop.driver_uid()
    patch(shop, "baskets", suspend=True)
    eventually(lambda: status(shop, "baskets").get("phase") == "Suspended")
    traffic = Traffic(shop.server.uri("shop")).start()
    eventually(lambda: sum(traffic.transactions.values()) > 50)
    traffic.stop()
    others = [t for t in TABLES if t != "baskets"]
    eventually(lambda: not [d for d in shop.differences() if d.split(":")[0] in others])
    patch(shop, "baskets", suspend=False)
    shop.equal()
    assert shop.driver_uid() == uid
