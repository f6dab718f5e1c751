"""Secrets are changed while the driver runs."""

from __future__ import annotations

import pytest
from tests.cluster.kubectl import eventually
from tests.cluster.node.place import PASSWORD, ROLE, Place, secret

pytestmark = pytest.mark.nightly


def test_rotated_password_is_taken_up(shop: Place) -> None:
    """The password changes at the source and in the Secret, connections are cut: replication goes on, no restart."""
    uid, restarts = shop.driver_uid(), shop.restarts()
    new = f"{PASSWORD}-2"
    shop.execute(f"ALTER ROLE {ROLE} PASSWORD '{new}'")
    shop.kubectl.apply(secret(new))
    # The kubelet writes the new file within its sync period.
    eventually(lambda: shop.in_driver("cat", "/var/run/levada/secrets/shop-cdc/password") == new)
    shop.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{ROLE}'")
    shop.execute("UPDATE customers SET name = name || '?'")
    shop.equal()
    shop.ready()
    assert (shop.driver_uid(), shop.restarts()) == (uid, restarts)


def test_rotated_key_of_the_lake_is_taken_up(place: Place) -> None:
    """The driver restarts in its process with the Secret's new content.

    Its pod does not restart, and replication goes on.
    """
    lake = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "lake"}}
    place.kubectl.apply({**lake, "stringData": {"io.manifest.cache-enabled": "false"}})
    place.apply(destination={"iceberg": {"credentialsSecretRef": {"name": "lake"}}})
    place.ready()
    uid, epoch = place.driver_uid(), place.status()["driver"]["epoch"]
    place.kubectl.apply({**lake, "stringData": {"io.manifest.cache-enabled": "true"}})
    eventually(lambda: place.status()["driver"]["epoch"] > epoch)
    place.execute("UPDATE customers SET name = name || '!'")
    place.equal()
    place.ready()
    assert (place.driver_uid(), place.restarts()) == (uid, 0)
