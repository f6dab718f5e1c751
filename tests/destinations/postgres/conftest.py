"""A database to write to."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.destinations.postgres.replica import Replica
from tests.rigs.database import Database

from levada.destinations import DestinationContext


@pytest.fixture
def replica(db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Replica:
    """An empty database to write to."""
    monkeypatch.setenv("PGUSER", "postgres")
    return Replica(db, DestinationContext("shop", tmp_path))
