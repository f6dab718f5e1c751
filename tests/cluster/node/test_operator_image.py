"""The operator in its own small image, with drivers in the large one."""

from __future__ import annotations

import pytest
from tests.cluster.bringup.images import ensure_image
from tests.cluster.bringup.layout import Layout
from tests.cluster.kubectl import eventually
from tests.cluster.node.installed import Installed, run_helm
from tests.cluster.node.place import Place

pytestmark = pytest.mark.nightly


def test_operator_in_its_own_image(shop: Place, layout: Layout, operator: Installed, image: str) -> None:
    """Neither Java, Spark nor Arrow is in it. The chart's check passes, and it runs drivers in their image."""
    small = ensure_image(layout, "operator")
    repository, tag = small.rsplit(":", 1)
    with operator.with_values(f"image.repository={repository},image.tag={tag},driverImage={image}"):
        eventually(lambda: operator.pod()["spec"]["containers"][0]["image"] == small)
        run_helm("test", "levada")
        absent = "import importlib.util as u; print([n for n in ('pyspark', 'pyarrow', 'psycopg') if u.find_spec(n)])"
        assert operator.kubectl("exec", operator.pod()["metadata"]["name"], "--", "python", "-c", absent) == "[]\n"
        before = shop.driver_uid()
        shop.patch(restartNonce=int(shop.kubectl.get("pipeline", "shop")["metadata"]["generation"]))
        eventually(lambda: shop.driver_uid() not in ("", before))
        shop.ready()
        containers = {container["name"]: container["image"] for container in shop.driver()["spec"]["containers"]}
        assert containers["driver"] == image
        shop.equal()
