"""`kubectl patch` of every field of a Pipeline that runs: its change class says whether the pod is another one."""

from __future__ import annotations

import json

import pytest
from tests.cluster.fields import CLASSES, patch_of
from tests.cluster.kubectl import eventually
from tests.cluster.node.place import Place

from levada.spec import Change

pytestmark = pytest.mark.nightly

_OF_OTHERS = (
    "staging.scratch",
    "staging.volumeClaim",
    "driver.serviceAccount",
    "driver.tokenSecretRef",
    "store.custom",
    "store.postgres.connection",
)
"""Fields that exclude others of the shop's Pipeline, or that need more of the cluster than it has."""


def of_class(change: Change) -> list[str]:
    """Return the fields of that class that the shop can have, but for `suspend`, which has tests of its own."""
    its = (p for p in CLASSES if not p.startswith("destination.") or p.startswith("destination.iceberg."))
    return [p for p in its if CLASSES[p] is change and not p.startswith(_OF_OTHERS) and p != "suspend"]


def patch(place: Place, path: str) -> None:
    """Give the field another value, and wait until an Event names its class and the field."""
    place.kubectl.patch("pipeline", "shop", patch_of(path))
    eventually(lambda: any(f"{CLASSES[path].value}: spec.{path}" in told for told in place.events("SpecChanged")))


def test_hot_fields_reach_the_driver_that_runs(place: Place) -> None:
    """The running process takes up each field, as its log says. No pod and no container is replaced."""
    place.apply()
    place.ready()
    uid, restarts = place.driver_uid(), place.restarts()
    for path in of_class(Change.HOT):
        patch(place, path)

    def missing() -> list[str]:
        taken = [line for line in place.kubectl("logs", "shop-driver-0").splitlines() if "taken up from" in line]
        return [path for path in of_class(Change.HOT) if not any(path in line for line in taken)]

    eventually(lambda: not missing())
    assert (place.driver_uid(), place.restarts()) == (uid, restarts)


def test_other_fields_replace_the_pod(place: Place, shop: Place) -> None:
    """The driver's pod is replaced for each, whether the new value is of use here or not.

    No other Pipeline's pod is.
    """
    other = shop.driver_uid(), shop.restarts()
    place.kubectl("create", "secret", "generic", "ca", "--from-literal=ca.crt=not looked at: tls.mode is Disable")
    place.kubectl("create", "secret", "generic", "lake", "--from-literal=io.manifest.cache-enabled=false")
    place.apply(
        source={"tls": {"caSecretRef": {"name": "ca", "key": "ca.crt"}}},
        destination={"iceberg": {"credentialsSecretRef": {"name": "lake"}}},
        executor={"instances": {"max": 4}},
    )
    place.ready()
    for path in of_class(Change.RESTART) + of_class(Change.RESYNC):
        before = place.driver_uid()
        patch(place, path)
        eventually(lambda before=before: place.driver_uid() not in ("", before))  # type: ignore[misc]  # bound on purpose
    assert (shop.driver_uid(), shop.restarts()) == other
    # With all as it was it runs again, and nothing is lost. The format version cannot become lower.
    place.execute("UPDATE customers SET name = name || '#'")
    former = place.manifest(destination={"iceberg": {"formatVersion": 3}})
    place.kubectl("replace", "-f", "-", stdin=json.dumps(former))
    place.ready()
    place.equal()


@pytest.mark.parametrize("path", of_class(Change.IMMUTABLE))
def test_immutable_field_is_refused(shop: Place, path: str) -> None:
    """The API server refuses the patch, and names the field. The driver's pod stays."""
    uid = shop.driver_uid()
    done = shop.kubectl.run("patch", "pipeline", "shop", "--type=merge", "-p", json.dumps(patch_of(path)), check=False)
    assert done.returncode != 0
    assert f"spec.{path} is Immutable" in done.stderr
    assert shop.driver_uid() == uid
