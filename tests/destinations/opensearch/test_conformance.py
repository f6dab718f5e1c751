"""The conformance suite on an OpenSearch node."""

from __future__ import annotations

from typing import ClassVar

import pytest
from tests.destinations.opensearch.place import Cluster

from levada.testing import DestinationConformance, DestinationPlace
from levada.testing.destinations.changes import Changes
from levada.testing.destinations.copies import Copies
from levada.testing.destinations.errors import Errors
from levada.testing.destinations.schema_changes import SchemaChanges
from levada.testing.destinations.values import Values
from levada.testing.destinations.watermarks import Watermarks


class TestOpenSearch(DestinationConformance):
    """The OpenSearch destination under the conformance suite. Kills and shadow copies run nightly."""

    parts_of_each_run: ClassVar[tuple[type, ...]] = (Changes, Copies, Errors, SchemaChanges, Values, Watermarks)

    @pytest.fixture
    def place(self, cluster: Cluster) -> DestinationPlace:
        """Return a place in the cluster, read by OpenSearch's client."""
        return cluster.place()
