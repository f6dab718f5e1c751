"""The places that the behaviours of a store are tested over. A new kind of store is one more entry here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

import pytest
from tests.conftest import Database

from levada.stores import CachedStore, MemoryStorage, PipelineStore, Storage
from levada.stores.postgres import PostgresStorage

OpenStore = Callable[[str], PipelineStore]
"""Opens another store of a pipeline over the same storage, as a restarted or a second driver does."""


OpenStorage = Callable[[str], Storage]
"""Opens the storage of a pipeline, again over the same content."""


def _memory(request: pytest.FixtureRequest) -> OpenStorage:
    storages: defaultdict[str, MemoryStorage] = defaultdict(MemoryStorage)
    return lambda pipeline: storages[pipeline]


def _postgres(request: pytest.FixtureRequest) -> OpenStorage:
    db: Database = request.getfixturevalue("db")
    return lambda pipeline: PostgresStorage(db.connection, pipeline, "levada")


@pytest.fixture(params=[_memory, _postgres], ids=["memory", "postgres"])
def open_storage(request: pytest.FixtureRequest) -> Iterator[OpenStorage]:
    """Open storages of one place. They are closed after the test."""
    opened: list[Storage] = []
    place: OpenStorage = request.param(request)

    def opening(pipeline: str) -> Storage:
        opened.append(place(pipeline))
        return opened[-1]

    yield opening
    for storage in opened:
        storage.close()


@pytest.fixture
def open_store(open_storage: OpenStorage) -> OpenStore:
    """Open stores over one place."""
    return lambda pipeline: CachedStore(pipeline, open_storage(pipeline))


@pytest.fixture
def store(open_store: OpenStore) -> PipelineStore:
    """A store of the pipeline ``shop`` that has taken the pipeline over."""
    store = open_store("shop")
    store.next_epoch()
    return store
