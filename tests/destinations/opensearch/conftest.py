"""A place in the cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.destinations.opensearch.place import Cluster


@pytest.fixture
def cluster(opensearch: str, tmp_path: Path) -> Cluster:
    """Return an empty place in the cluster."""
    return Cluster.new(opensearch, tmp_path)
