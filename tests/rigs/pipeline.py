"""A pipeline in this process that can be stopped and started over the same state."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.rigs.database import Database
from tests.rigs.recording import Recording
from tests.rigs.waiting import LIMIT_S, until

from levada.runtime.config import (
    PipelineConfig,
    PublicationConfig,
    RetryLimits,
    SlotConfig,
    StagingConfig,
    TableConfig,
)
from levada.runtime.pipeline import Pipeline
from levada.status import Progress, TableProgress
from levada.stores import MemoryStorage, MemoryStore, PipelineStore
from levada.values import OnUnstreamable, QualifiedTable

HELD = TableConfig(on_unstreamable=OnUnstreamable.HOLD)
"""The settings of a table that stays parked, so that a test sees why."""


def public(name: str) -> QualifiedTable:
    """Return a table of schema public."""
    return QualifiedTable("public", name)


class Only:
    """Selects the tables of these names."""

    def __init__(self, *names: str) -> None:
        self.names = frozenset(names)

    def __call__(self, table: QualifiedTable) -> bool:
        return table.schema == "public" and table.name in self.names


class Rig:
    """A pipeline over a test's database that can be ended and begun again over the same state."""

    def __init__(self, db: Database, folder: Path) -> None:
        self.db = db
        self.storage = MemoryStorage()
        self.destination = Recording()
        self.config = PipelineConfig(
            name="shop",
            source=db.connection,
            slot=SlotConfig(f"levada_{db.name}"),
            publication=PublicationConfig(f"levada_{db.name}"),
            staging=StagingConfig(f"file://{folder / 'staging'}", durable=True),
            work_dir=folder,
            selects=Only("orders", "items"),
            batch_fill_s=0.1,
            freshness_s=1.0,
            discovery_s=3600.0,
            retries=RetryLimits(max_attempts=1),
            default_table=HELD,
        )
        self.store: Callable[[], PipelineStore] = lambda: MemoryStore("shop", self.storage)
        self.running: Pipeline | None = None

    def start(self) -> None:
        self.running = Pipeline(
            self.config,
            store=self.store(),
            destination=self.destination,
        )
        self.running.start()

    def stop(self) -> None:
        if self.running is not None:
            self.running.stop()
            self.running = None

    def change(self, **fields: Any) -> None:
        self.config = replace(self.config, **fields)
        if self.running is not None:
            self.running.reconfigure(self.config)

    def copy_again(self) -> None:
        """Let tables be copied again by themselves, although this destination cannot replace what readers use."""
        self.change(default_table=TableConfig(on_unstreamable=OnUnstreamable.RESYNC))

    def say(self, table: str, **fields: Any) -> None:
        """Change the settings of a table."""
        said = replace(self.config.table(public(table)), **fields)
        self.change(tables={**self.config.tables, public(table): said})

    def wait(self, what: Callable[[Progress], bool]) -> Progress:
        assert self.running is not None
        return reach(self.running, what)

    def wait_caught_up(self) -> Progress:
        assert self.running is not None
        return self.wait(self.running.caught_up())


def table(progress: Progress, name: str) -> TableProgress:
    """Return a table's progress."""
    return next(t for t in progress.tables if t.table.name == name)


def reach(pipeline: Pipeline, what: Callable[[Progress], object]) -> Progress:
    """Wait for a progress of the pipeline. Raise the error that ends it before."""
    return until(pipeline.progress, what, alive=lambda: not pipeline.wait(0))


def wait_for(event: threading.Event) -> None:
    """Wait for the event, as long as a test may last."""
    assert event.wait(LIMIT_S)


@pytest.fixture
def rig(db: Database, tmp_path: Path) -> Iterator[Rig]:
    """A pipeline of two small tables, not started."""
    db.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, note text, secret text)",
        "CREATE TABLE items (id int PRIMARY KEY)",
        "CREATE TABLE others (id int PRIMARY KEY)",
        "INSERT INTO orders SELECT i, 'n', 's' FROM generate_series(1, 10) i",
        "INSERT INTO others SELECT generate_series(1, 7)",
    )
    made = Rig(db, tmp_path)
    yield made
    made.stop()
