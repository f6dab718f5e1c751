"""Drivers under a user that the image does not know, as OpenShift assigns one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

import pytest
from tests.cluster.node.installed import CHART, Installed, run_helm
from tests.cluster.node.place import Place

pytestmark = pytest.mark.long

ASSIGNED: Final = 1000670000


@pytest.fixture
def assigning(operator: Installed) -> Iterator[None]:
    """The release for a cluster that assigns users, and as it was afterwards."""
    upgrade = ("upgrade", "levada", str(CHART), "--reuse-values", "--wait", "--timeout=3m", "--set")
    run_helm(*upgrade, "assignedUser=true")
    yield
    run_helm(*upgrade, "assignedUser=false")


def test_driver_of_a_user_without_a_name(place: Place, assigning: None) -> None:
    """The pods ask for no user. Under one without a name, in the group root, the shop is copied and equal."""
    # This cluster assigns none: the template takes the place of that.
    user = {"runAsUser": ASSIGNED, "runAsGroup": 0, "fsGroup": ASSIGNED}
    os.chown(place.lake, ASSIGNED, 0)
    driver = place.manifest()["spec"]["driver"]
    driver["podTemplate"]["spec"]["securityContext"] = user
    place.apply(driver=driver)
    place.ready()
    place.equal()
    assert place.in_driver("id", "-u").strip() == str(ASSIGNED)
    assert ": different" not in place.in_driver("levada", "verify")
    place.kubectl("delete", "pipeline", "shop", "--timeout=180s")
    assert place.slot() is None
