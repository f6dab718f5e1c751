"""The conformance suite on an OpenSearch node."""

from __future__ import annotations

import pytest
from tests.destinations.opensearch.place import Cluster

from levada.testing import DestinationConformance, DestinationPlace


class TestOpenSearch(DestinationConformance):
    """The OpenSearch destination under the conformance suite."""

    @pytest.fixture
    def place(self, cluster: Cluster) -> DestinationPlace:
        """Return a place in the cluster, read by OpenSearch's client."""
        return cluster.place()
