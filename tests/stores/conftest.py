"""The places that the behaviours of a store are tested over; a new kind of store is one more entry here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

import pytest
from tests.conftest import Database

from levada.stores import MemoryStorage, MemoryStore, PipelineStore, PostgresStore

OpenStore = Callable[[str], PipelineStore]
"""Opens another store of a pipeline over the same storage, as a restarted or a second driver does."""


def _memory(request: pytest.FixtureRequest) -> OpenStore:
    storages: defaultdict[str, MemoryStorage] = defaultdict(MemoryStorage)
    return lambda pipeline: MemoryStore(pipeline, storages[pipeline])


def _postgres(request: pytest.FixtureRequest) -> OpenStore:
    db: Database = request.getfixturevalue("db")
    return lambda pipeline: PostgresStore(db.connection, pipeline)


@pytest.fixture(params=[_memory, _postgres], ids=["memory", "postgres"])
def open_store(request: pytest.FixtureRequest) -> Iterator[OpenStore]:
    """Open stores over one storage; closed after the test."""
    opened: list[PipelineStore] = []
    place: OpenStore = request.param(request)

    def opening(pipeline: str) -> PipelineStore:
        opened.append(place(pipeline))
        return opened[-1]

    yield opening
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: OpenStore) -> PipelineStore:
    """A store of the pipeline ``shop`` that has taken the pipeline over."""
    store = open_store("shop")
    store.next_epoch()
    return store
