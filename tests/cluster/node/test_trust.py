"""Approvals, cuts, verifications, the guard and the token, as a user of kubectl meets them."""

from __future__ import annotations

import json
import shlex
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final

import pytest
from tests.cluster.kubectl import PATIENCE, eventually
from tests.cluster.node.installed import Installed
from tests.cluster.node.pages import environment, opened, waiting
from tests.cluster.node.place import TABLES, Place
from tests.cluster.node.tunnels import tunnel
from tests.docs.pages import run_page
from tests.rigs.waiting import LIMIT_S

pytestmark = pytest.mark.nightly

DOCS: Final = Path(__file__).parents[3] / "docs"


def test_copies_wait_for_the_approval_of_this_change(place: Place, operator: Installed) -> None:
    """No table is copied and no pod is replaced meanwhile, whichever process is killed, and if the manifest is deleted.

    An outdated approval approves nothing.
    """
    place.apply(approval="Manual")
    place.ready()
    uid = place.driver_uid()
    place.patch(onUnrepresentable="Text")
    outdated = waiting(place)
    assert "copies again 6 tables" in place.message("Approved")
    place.patch(freshnessSeconds=3)
    eventually(lambda: waiting(place) != outdated)
    place.kubectl(*shlex.split(outdated)[1:])
    place.kill_in_driver("/opt/levada/venv/bin/python")
    operator.restart()
    place.ready()
    command = waiting(place)
    assert (place.driver_uid(), command != outdated) == (uid, True)
    assert "onUnrepresentable: Error" in place.kubectl.get("configmap", "shop-manifest")["data"]["pipeline.yaml"]
    place.kubectl("delete", "configmap", "shop-manifest")
    restored = eventually(lambda: place.kubectl.get("configmap", "shop-manifest"))
    assert "onUnrepresentable: Error" in restored["data"]["pipeline.yaml"]
    assert (waiting(place), place.driver_uid()) == (command, uid)
    place.patch(onUnrepresentable="Error")
    place.reaches("Approved", "True", "NothingWaits")
    place.patch(onUnrepresentable="Text")
    command = waiting(place)
    place.kubectl(*shlex.split(command)[1:])
    place.reaches("Approved", "True", "Approved")
    eventually(lambda: place.driver_uid() not in ("", uid))
    place.ready()
    place.equal()


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
    assert "complete at 0/" in shop.in_driver("levada", "cut", "month_end")
    (cut,) = json.loads(shop.in_driver("levada", "cuts", "-o", "json"))["cuts"]
    assert (cut["name"], cut["phase"]) == ("month_end", "Complete")
    eventually(lambda: shop.status().get("cuts", {}).get("lastComplete", {}).get("name") == "month_end")
    shop.in_driver("levada", "cut", "month_end", "--drop")
    eventually(lambda: "month_end" not in shop.in_driver("levada", "cuts"))


def test_a_file_that_is_missing_in_the_lake(shop: Place) -> None:
    """A comparison names it in the condition. The repair by kubectl exec makes the condition True again."""
    # The largest file has the rows that compaction put together. Others may be of former snapshots, which no one reads.
    files = [f for f in (shop.lake / "shop" / "payments" / "data").rglob("*.parquet") if "-deletes" not in f.name]
    max(files, key=lambda f: f.stat().st_size).unlink()
    nonce = int(table(shop, "payments").get("verifyNonce") or 0) + 1
    shop.kubectl.patch("tablesync", "shop-public-payments", {"spec": {"verifyNonce": nonce}})
    eventually(lambda: verified(shop, "payments") == ("False", "Different"))
    found = {c["type"]: c["message"] for c in table(shop, "payments")["conditions"]}
    assert "a file of shop.payments is missing or damaged: file:///var/lib/lake/shop/payments/" in found["Verified"]
    command = found["Verified"].partition("see: ")[2]
    shop.kubectl(*shlex.split(f"{command} --repair")[1:])
    eventually(lambda: verified(shop, "payments") == ("True", "Repaired"))
    shop.equal()


def test_a_passed_limit_of_the_guard(shop: Place) -> None:
    """It is a condition and an Event, while the driver runs and while the Pipeline is suspended. It ends by itself."""
    staged = {"guard": {"staged": {"warn": 10, "pauseCopies": 20}}}
    shop.patch(**staged)

    def passed() -> bool:
        # The driver reads of the suspension up to a minute later. From then on the changes of the table stay staged.
        shop.execute("UPDATE orders SET note = coalesce(note, '') || '.'")
        return shop.condition("WithinLimits") == ("False", "PauseCopies")

    shop.kubectl.patch("tablesync", "shop-public-orders", {"spec": {"suspend": True}})
    eventually(passed)
    assert "guard.staged.pauseCopies" in shop.message("WithinLimits")
    assert shop.told("LimitPassed")
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


def ask(address: str, token: str) -> int:
    """Return the status of the answer to a request with that token."""
    request = urllib.request.Request(f"{address}/v1/progress", headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def test_a_token_is_asked_for_and_renewed(place: Place, operator: Installed, tmp_path: Path) -> None:
    """Only the probes and the page's own files work without it. An empty one admits no client.

    A new one needs no restart. The commands of docs/page.md open the page of the driver, and print the token.
    """
    reference = {"name": "driver-token", "key": "token"}
    place.apply(driver={"tokenSecretRef": reference})
    place.reaches("Accepted", "False", "InvalidSpec")
    assert "driverToken.secretName" in place.message("Accepted")
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "driver-token"}}
    mine = place.kubectl.namespace
    operator.kubectl.apply({**secret, "stringData": {mine: "first"}})
    with operator.with_values("driverToken.secretName=driver-token"):
        place.reaches("DriverAvailable", "False", "SecretMissing")
        # The command in the message, without its pod.
        command = place.message("DriverAvailable").partition("; ")[2].partition(" [")[0]
        place.kubectl(*shlex.split(command.replace("VALUE", "first"))[1:])
        place.ready()
        here = {**opened("kubectl -n data port-forward pod/shop-driver-0 8080:8080", tmp_path), "-n data ": ""}
        run_page(DOCS / "page.md", tmp_path, environment(place, tmp_path), adapted=here)
        assert (tmp_path / "output").read_text().endswith("\nfirstend of block\n")
        with tunnel(place) as address:
            assert (ask(address, ""), ask(address, "wrong"), ask(address, "first")) == (401, 401, 200)
            for path in ("/", "/page.js", "/livez", "/readyz"):
                assert urllib.request.urlopen(address + path, timeout=LIMIT_S).status == 200
            place.kubectl.apply({**secret, "stringData": {"token": ""}})
            eventually(lambda: ask(address, "first") == 401)
            assert ask(address, "") == 401
            for one, key in ((place.kubectl, "token"), (operator.kubectl, mine)):
                one.apply({**secret, "stringData": {key: "second"}})
            eventually(lambda: ask(address, "second") == 200)
        place.ready()
        assert place.restarts() == 0
        eventually(lambda: len(place.kubectl.get("tablesyncs")) == len(TABLES))
        place.kubectl("delete", "pipeline", "shop", PATIENCE)
