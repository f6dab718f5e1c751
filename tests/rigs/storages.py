"""Functions that open stores again over the same content."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from tests.examples.load import load_example
from tests.rigs.database import Database, StartPostgres

from levada.local.postgres import EmbeddedPostgres
from levada.stores import CachedStore, MemoryStorage, PipelineStore, Storage
from levada.stores.connection import StoreConnection
from levada.stores.postgres import PostgresStorage

OpenStore = Callable[[str], PipelineStore]
"""Opens another store of a pipeline over the same storage, as a restarted or a second driver does."""

OpenStorage = Callable[[str], Storage]
"""Opens the storage of a pipeline, again over the same content."""


@pytest.fixture
def memory() -> OpenStorage:
    """Open storages in this process's memory."""
    storages: defaultdict[str, MemoryStorage] = defaultdict(MemoryStorage)
    return lambda pipeline: storages[pipeline]


@pytest.fixture
def in_source(db: Database) -> OpenStorage:
    """Open storages in the source's database."""
    return lambda pipeline: PostgresStorage(db.connection, pipeline, "levada")


@pytest.fixture
def elsewhere(second_server: EmbeddedPostgres) -> OpenStorage:
    """Open storages in the database of another server."""
    with psycopg.connect(second_server.uri(), autocommit=True) as admin:
        admin.execute("DROP DATABASE IF EXISTS states WITH (FORCE)")
        admin.execute("CREATE DATABASE states")
    connection = StoreConnection("127.0.0.1", second_server.port, "states", sslmode="disable", user="postgres")
    return lambda pipeline: PostgresStorage(connection, pipeline, "state of pipelines")


@pytest.fixture
def example(tmp_path: Path) -> OpenStorage:
    """Open storages of the example."""
    module = load_example("custom_store")
    return lambda pipeline: module.SqliteStorage(tmp_path / "state.sqlite", pipeline)


@pytest.fixture(
    params=["memory", "in_source", "elsewhere", "example"], ids=["memory", "postgres", "elsewhere", "example"]
)
def open_storage(request: pytest.FixtureRequest) -> Iterator[OpenStorage]:
    """Open storages of one place. They are closed after the test."""
    opened: list[Storage] = []
    place: OpenStorage = request.getfixturevalue(request.param)

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


@pytest.fixture(scope="session")
def second_server(start_postgres: StartPostgres) -> Iterator[EmbeddedPostgres]:
    """A server that has state only."""
    with start_postgres(settings={"wal_level": "replica"}) as server:
        yield server
