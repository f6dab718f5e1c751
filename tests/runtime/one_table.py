"""The tables of a pipeline with one table."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.rigs.recording import Recording

from levada.postgres.catalog import StreamedTable
from levada.postgres.connection import PostgresConnection
from levada.postgres.membership import PublicationState
from levada.runtime.config import PipelineConfig, PublicationConfig, SlotConfig, StagingConfig
from levada.runtime.config_ref import ConfigRef
from levada.runtime.tables.record import TableRecord
from levada.runtime.tables.registry import TableRegistry
from levada.runtime.tables.source_tables import SourceTables
from levada.stores import MemoryStore
from levada.values import QualifiedTable, TableId

TABLE = TableId(1)


NAME = QualifiedTable("public", "orders")


@pytest.fixture
def store() -> MemoryStore:
    """The store of a pipeline that an engine has taken over."""
    made = MemoryStore("shop")
    made.next_epoch()
    return made


def config_ref(tmp_path: Path) -> ConfigRef:
    """Return the configuration of a pipeline of all tables."""
    config = PipelineConfig(
        "shop", PostgresConnection("localhost", 5432, "shop"), SlotConfig("levada_shop"),
        PublicationConfig("levada_shop"), StagingConfig(f"file://{tmp_path}"), tmp_path, selects=lambda table: True,
    )  # fmt: skip
    return ConfigRef(config)


def start(tmp_path: Path, store: MemoryStore) -> tuple[TableRegistry, TableRecord]:
    """Return the tables as an engine that starts has them."""
    registry = TableRegistry(config_ref(tmp_path), store, Recording(), lambda: 1, lambda table, columns, masks: None)
    found = SourceTables((StreamedTable(TABLE, NAME),), PublicationState("levada_shop", None, {}, {}))
    registry.membership.adopt(found, (), resync=False)
    return registry, registry.tables[TABLE]
