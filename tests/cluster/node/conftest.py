"""Fixtures of the tier with a node: the image, the operator as its chart installs it, and places with a shop each.

`shop` is a running Pipeline that tests share, and each leaves it streaming. A test that breaks it for others asks for
`place` or `new_place`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.cluster.bringup.images import ensure_image
from tests.cluster.bringup.layout import Layout
from tests.cluster.bringup.node import enter
from tests.cluster.kubectl import Kubectl
from tests.cluster.node.installed import Installed, install
from tests.cluster.node.place import Place, new_place


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run what removes everything from the cluster after all other tests."""
    items.sort(key=lambda item: "never_installed" in getattr(item, "fixturenames", ()))


@pytest.fixture(scope="session")
def layout(cluster: Kubectl) -> Layout:
    """Return the node that this project starts.

    These tests cannot reach another cluster's in the way that they need.
    """
    ours = Layout.default()
    if Path(os.environ["KUBECONFIG"]) != ours.kubeconfig():
        pytest.skip("KUBECONFIG names another cluster than that of `make cluster-up`")
    enter(ours, "true")
    return ours


@pytest.fixture(scope="session")
def image(layout: Layout) -> str:
    """Levada's image, on the node: that of these sources, or one that was loaded there by hand."""
    return os.environ.get("LEVADA_TEST_IMAGE") or ensure_image(layout)


@pytest.fixture(scope="session")
def operator(cluster: Kubectl, image: str) -> Iterator[Installed]:
    """The operator, installed by its chart for all namespaces."""
    with install(cluster, image) as installed:
        yield installed


@pytest.fixture
def place(layout: Layout, cluster: Kubectl, operator: Installed) -> Iterator[Place]:
    """A place of the test's own, without a Pipeline yet."""
    with new_place(layout, cluster) as one:
        yield one


@pytest.fixture(scope="session")
def streaming_shop(layout: Layout, cluster: Kubectl, operator: Installed) -> Iterator[Callable[[], Place]]:
    """Return the shared shop. If a failed test left it in another state, it is made again."""
    with ExitStack() as stack:
        kept: list[Place] = []

        def streaming() -> Place:
            if not (kept and kept[-1].fit()):
                stack.close()
                kept.append(stack.enter_context(new_place(layout, cluster)))
                kept[-1].apply()
                kept[-1].ready()
            return kept[-1]

        yield streaming


@pytest.fixture
def shop(streaming_shop: Callable[[], Place]) -> Place:
    """A Pipeline that streams, shared by all tests that ask for it."""
    return streaming_shop()
