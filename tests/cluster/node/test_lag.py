"""The slot's figures in the status are those of PostgreSQL, in any state of the driver. And suspending a Pipeline."""

from __future__ import annotations

from typing import Final

import pytest
from tests.cluster.kubectl import eventually
from tests.cluster.node.place import Place

pytestmark = pytest.mark.nightly

MIB: Final = 1 << 20
PROBE: Final = {"health": {"lagProbeSeconds": 10}}


def write_wal(shop: Place, mib: int) -> None:
    """Write that much WAL which is no table's."""
    shop.execute(f"SELECT pg_logical_emit_message(false, 'test', repeat('x', {MIB})) FROM generate_series(1, {mib})")


def told_as_it_is(shop: Place) -> bool:
    """Return True if the status is within a tenth, or a MiB, of PostgreSQL's figure."""
    slot, told = shop.slot(), shop.status().get("slot", {})
    assert slot is not None
    real, said = slot["lag"], told.get("lagBytes")
    return said is not None and abs(said - real) <= max(MIB, real // 10)


def test_lag_is_told_while_the_driver_runs(shop: Place) -> None:
    """A burst of WAL is read and confirmed. The status follows the slot down."""
    write_wal(shop, 30)
    eventually(lambda: (shop.slot() or {"lag": 1 << 40})["lag"] < MIB)
    eventually(lambda: told_as_it_is(shop) and shop.status()["slot"]["active"])


def test_lag_is_told_while_suspended(shop: Place) -> None:
    """A suspended driver drains and goes, the slot stays, and its lag is sampled.

    After it resumes, both sides become equal.
    """
    shop.patch(suspend=True, **PROBE)
    shop.reaches("Suspended", "True", "Drained")
    assert shop.kubectl.get("pod", "shop-driver-0") is None
    assert shop.condition("Ready") == ("False", "Suspended")
    shop.execute("UPDATE customers SET name = name || '!'")
    write_wal(shop, 40)
    eventually(lambda: (shop.status()["slot"]["lagBytes"] or 0) > 35 * MIB and told_as_it_is(shop))
    assert shop.status()["slot"]["active"] is False
    shop.patch(suspend=False)
    shop.ready()
    shop.equal()
    eventually(lambda: told_as_it_is(shop))


def test_lag_is_told_while_no_node_has_room(shop: Place) -> None:
    """A driver that fits no node is Unschedulable, and its growing lag is in the status.

    With smaller requests it catches up.
    """
    shop.patch(driver={"resources": {"requests": {"cpu": "64"}}}, **PROBE)
    shop.reaches("DriverAvailable", "False", "Unschedulable")
    write_wal(shop, 40)
    eventually(lambda: (shop.status()["slot"]["lagBytes"] or 0) > 35 * MIB and told_as_it_is(shop))
    shop.patch(driver={"resources": {"requests": {"cpu": "500m"}}})
    shop.reaches("DriverAvailable", "True", "PodReady")
    shop.ready()
    shop.equal()


def test_lag_is_told_while_the_driver_crashes(shop: Place) -> None:
    """A driver that cannot start is CrashLooping, and the lag that grows is reported. Later it catches up by itself."""
    shop.patch(**PROBE)
    shop.execute("INSERT INTO levada.store_migrations VALUES (10000)")
    # The preflight, which would find this, does not run again in the same pod.
    shop.kill_in_driver(".*/bin/levada run")
    shop.reaches("DriverAvailable", "False", "CrashLooping")
    eventually(lambda: "[store_newer]" in shop.message("DriverAvailable"))
    write_wal(shop, 40)
    eventually(lambda: (shop.status()["slot"]["lagBytes"] or 0) > 35 * MIB and told_as_it_is(shop))
    shop.execute("DELETE FROM levada.store_migrations WHERE version = 10000")
    # A start with a known error is repeated every few minutes.
    shop.reaches("DriverAvailable", "True", "PodReady")
    shop.ready()
    shop.equal()
