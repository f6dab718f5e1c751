"""The example of a store of one's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.examples.load import load_example

from levada.stores import PipelineStore
from levada.testing import OpenStore, StoreConformance


class TestConformance(StoreConformance):
    """The store in SQLite under the conformance suite."""

    @pytest.fixture
    def open_store(self, tmp_path: Path) -> Iterator[OpenStore]:
        """Open stores over one file. They are closed after the test."""
        example, opened = load_example("custom_store"), list[PipelineStore]()

        def opening(pipeline: str) -> PipelineStore:
            opened.append(example.open_store(tmp_path / "state.sqlite", pipeline))
            return opened[-1]

        yield opening
        for store in opened:
            store.close()
