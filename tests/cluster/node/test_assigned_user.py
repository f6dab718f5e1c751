"""Drivers under a user that the image does not know, as OpenShift assigns one."""

from __future__ import annotations

import os
from typing import Final

import pytest
from tests.cluster.kubectl import PATIENCE
from tests.cluster.node.installed import Installed
from tests.cluster.node.place import Place

pytestmark = pytest.mark.nightly

ASSIGNED: Final = 1000670000


def test_driver_of_a_user_without_a_name(place: Place, operator: Installed) -> None:
    """The pods ask for no user. Under one without a name, in the group root, the shop is copied and equal."""
    # This cluster assigns none: the template takes the place of that.
    user = {"runAsUser": ASSIGNED, "runAsGroup": 0, "fsGroup": ASSIGNED}
    os.chown(place.lake, ASSIGNED, 0)
    driver = place.manifest()["spec"]["driver"]
    driver["podTemplate"]["spec"]["securityContext"] = user
    with operator.with_values("assignedUser=true"):
        place.apply(driver=driver)
        place.ready()
        place.equal()
        assert place.in_driver("id", "-u").strip() == str(ASSIGNED)
        assert ": different" not in place.in_driver("levada", "verify")
        place.kubectl("delete", "pipeline", "shop", PATIENCE)
        assert place.slot() is None
