"""An engine per test, ended with it whatever happens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import Database
from tests.scenarios.engine import Engine


@pytest.fixture
def engine(db: Database, tmp_path: Path) -> Iterator[Engine]:
    """An engine over the test's database, ended with it."""
    made = Engine(db, tmp_path)
    try:
        yield made
    finally:
        made.kill()
