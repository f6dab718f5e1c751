"""A change that cannot run goes back by itself on a real node, and replication continues."""

from __future__ import annotations

import pytest
from tests.cluster.kubectl import PATIENCE, Kubectl, eventually
from tests.cluster.node.place import Place

pytestmark = pytest.mark.nightly


def image(kubectl: Kubectl) -> str:
    """Return the image of the driver's template."""
    template = kubectl.get("statefulset", "shop-driver")["spec"]["template"]
    return str(template["spec"]["containers"][0]["image"])


def test_image_that_is_nowhere_goes_back(shop: Place) -> None:
    """An image that cannot be pulled is Failed after the deadline with its cause. The former one streams on."""
    former = image(shop.kubectl)
    shop.patch(health={"progressDeadlineSeconds": 30}, driver={"image": "localhost/nowhere:1"})
    try:
        eventually(lambda: image(shop.kubectl) == "localhost/nowhere:1")
        shop.execute("UPDATE customers SET newsletter = NOT newsletter WHERE id <= 10")
        shop.reaches("Accepted", "False", "RolledBack")
        assert "ImagePullFailed" in shop.message("Accepted")
        assert shop.condition("Stalled") == ("True", "RolledBack")
        shop.reaches("Ready", "True", "Streaming")
        assert image(shop.kubectl) == former
        shop.equal()
    finally:
        shop.patch(health=None, driver={"image": None})
    shop.kubectl("wait", "--for=condition=Stalled=False", "pipeline/shop", PATIENCE)
    shop.ready()
