"""The conformance suite on an OpenSearch node."""

from __future__ import annotations

from typing import ClassVar

import pytest
from tests.destinations.opensearch.place import Cluster

from levada.testing import DestinationConformance, DestinationPlace
from levada.testing.destinations.changes import Changes
from levada.testing.destinations.copies import Copies
from levada.testing.destinations.schema_changes import SchemaChanges
from levada.testing.destinations.values import Values
from levada.testing.destinations.watermarks import Watermarks


class TestOpenSearch(DestinationConformance):
    """The OpenSearch destination under the conformance suite.

    Kills and shadow copies run nightly. So do all but one of the errors, which pass through the same code.
    """

    parts_of_each_run: ClassVar[tuple[type | str, ...]] = (
        Changes,
        Copies,
        SchemaChanges,
        Values,
        Watermarks,
        "test_an_unrepresentable_value",
        "test_errors_keep_their_class[Transient]",
    )

    @pytest.fixture
    def place(self, cluster: Cluster) -> DestinationPlace:
        """Return a place in the cluster, read by OpenSearch's client."""
        return cluster.place()
