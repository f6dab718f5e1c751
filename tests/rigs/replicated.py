"""A pipeline from one database to another of the same server, whose table ``t`` is verified."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import psycopg
import pytest
from tests.rigs.database import Database
from tests.rigs.pipeline import reach
from tests.servers.ducklake import DuckLake

from levada.destinations import Destination, DestinationContext
from levada.destinations.postgres import PostgresDestination
from levada.destinations.postgres.settings import Settings
from levada.runtime.config import PipelineConfig, PublicationConfig, RetryLimits, SlotConfig, StagingConfig
from levada.runtime.pipeline import Pipeline
from levada.stores import MemoryStorage, MemoryStore
from levada.values import QualifiedTable
from levada.verify.report import TableReport
from levada.verify.table import VerifyOptions

T = QualifiedTable("public", "t")
R = TypeVar("R", bound="Replicated")


class Replicated:
    """A pipeline from one database to another of the same server."""

    def __init__(self, db: Database, replica: str, folder: Path) -> None:
        self.db = db
        self.replica = Database(db.server, replica)
        self.folder = folder
        self.pipeline: Pipeline | None = None
        self.storage = MemoryStorage()

    def start(
        self, ordering: str = "Table", *, wait: bool = True, compare: bool = False, resync: bool = False, **more: Any
    ) -> None:
        """Start the pipeline, and wait until it has caught up.

        With ``compare``, a lost slot costs a comparison, and with ``resync`` a copy.
        """
        name = self.db.name.replace("_", "-")
        publication = more.pop("publication", PublicationConfig(f"levada_{self.db.name}"))
        config = PipelineConfig(
            name,
            self.db.connection,
            SlotConfig(f"levada_{self.db.name}", resync_when_lost=compare or resync, compare_when_lost=compare),
            publication,
            StagingConfig(f"file://{self.folder / 'staging'}", durable=True),
            self.folder,
            selects=lambda table: table.schema == "public",
            batch_fill_s=0.1,
            freshness_s=0.5,
            retries=RetryLimits(max_attempts=1),
            **more,
        )
        destination = self.destination(DestinationContext(name, self.folder / "work"), ordering)
        self.pipeline = Pipeline(config, store=MemoryStore(name, self.storage), destination=destination)
        self.pipeline.start()
        if wait:
            self.wait_caught_up()

    def destination(self, context: DestinationContext, ordering: str) -> Destination:
        """Return the destination of a pipeline that starts."""
        server = {"host": "127.0.0.1", "port": self.db.server.port, "database": self.replica.name}
        settings = Settings.model_validate(
            {**server, "tls": {"mode": "Disable"}, "schema": "shop_{schema}", "ordering": ordering}
        )
        return PostgresDestination.from_settings(settings, context)

    def wait_caught_up(self) -> None:
        """Wait until the destination has what is committed now."""
        assert self.pipeline is not None
        reach(self.pipeline, self.pipeline.caught_up())

    def verify(self, **options: Any) -> TableReport:
        """Compare the table."""
        assert self.pipeline is not None
        return self.pipeline.verify(T, VerifyOptions(**options))

    def damage(self, statement: str) -> None:
        """Change the destination's table as another session that forces it."""
        with self.replica.connect() as connection:
            connection.execute("SET levada.writer = 'on'; SET search_path = shop_public")
            connection.execute(statement)  # type: ignore[call-overload]  # of a test


class InDuckLake(Replicated):
    """A pipeline into a DuckLake catalog, which is in a database of the same server."""

    def __init__(self, db: Database, replica: str, folder: Path) -> None:
        super().__init__(db, replica, folder)
        self.lake = DuckLake(self.replica, folder / "lake", DestinationContext("unused", folder / "unused"))

    def destination(self, context: DestinationContext, ordering: str) -> Destination:
        """Return the destination of a pipeline that starts."""
        assert ordering == "Table"
        return replace(self.lake, context=context).destination()

    def damage(self, statement: str) -> None:
        """Change the destination's table by DuckDB."""
        with self.lake.duckdb(DATA_INLINING_ROW_LIMIT=0) as connection:
            connection.execute("USE lake.shop_public")
            connection.execute(statement)
            connection.execute("USE lake")


@pytest.fixture
def replicated(db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Replicated]:
    """A pipeline that is not started yet, into an empty database."""
    with _made(Replicated, db, tmp_path, monkeypatch) as made:
        yield made


@pytest.fixture
def in_ducklake(db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InDuckLake]:
    """A pipeline that is not started yet, into an empty catalog."""
    with _made(InDuckLake, db, tmp_path, monkeypatch) as made:
        yield made


@contextmanager
def _made(kind: type[R], db: Database, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[R]:
    monkeypatch.setenv("PGUSER", "postgres")
    name = f"{db.name}_replica"
    with psycopg.connect(db.server.uri(), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")  # type: ignore[call-overload]  # a name of the test
    made = kind(db, name, folder)
    try:
        yield made
    finally:
        if made.pipeline is not None:
            made.pipeline.stop()
        with psycopg.connect(db.server.uri(), autocommit=True) as admin:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)")  # type: ignore[call-overload]  # as above
