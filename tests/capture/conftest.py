"""A capture of a test's database into a folder, run in a thread for as long as a test says."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.rigs.capture import Capture
from tests.rigs.database import Database


@pytest.fixture
def capture(db: Database, tmp_path: Path) -> Capture:
    """Return a capture on durable staging. The test calls `prepare` once it has created the tables."""
    return Capture(db, tmp_path / "staging")
