"""The OpenSearch destination on a real node."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.destinations.opensearch_place import Cluster

from levada.testing import DestinationConformance, DestinationPlace


@pytest.fixture
def cluster(opensearch: str, tmp_path: Path) -> Cluster:
    """Return an empty place in the cluster."""
    return Cluster.new(opensearch, tmp_path)


class TestOpenSearch(DestinationConformance):
    """The OpenSearch destination under the conformance suite."""

    @pytest.fixture
    def place(self, cluster: Cluster) -> DestinationPlace:
        """Return a place in the cluster, read by OpenSearch's client."""
        return cluster.place()
