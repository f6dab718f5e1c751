"""The stores of the project, and the example, under the conformance suite."""

from __future__ import annotations

import pytest
from tests.rigs.storages import OpenStorage

from levada.stores import CachedStore
from levada.testing import OpenStore, StoreConformance


class TestStores(StoreConformance):
    """Each storage in turn."""

    @pytest.fixture
    def open_store(self, open_storage: OpenStorage) -> OpenStore:
        """Return stores over one place."""
        return lambda pipeline: CachedStore(pipeline, open_storage(pipeline))
