"""Pages for newcomers do what they say: each of their commands is run, in order, on a real PostgreSQL."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from tests.docs.pages import PAGES, run_page
from tests.rigs.database import Database

DOCS = Path(__file__).parents[2] / "docs"
ALWAYS = ("tutorials/change-capture.md",)
"""A page without Spark. The others cost up to a CPU minute each, and run nightly."""


@pytest.mark.usefixtures("own_jvm")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "page", [page if page in ALWAYS else pytest.param(page, marks=pytest.mark.nightly) for page in PAGES]
)
def test_each_command_of_the_page_works(page: str, db: Database, tmp_path: Path) -> None:
    """The blocks of the page run from top to bottom, and print what the page shows, in a folder with any name."""
    folder = tmp_path / "Größe 50%20"
    folder.mkdir()
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{db.server.bin}:{os.environ['PATH']}",
        "PGHOST": "127.0.0.1",
        "PGPORT": str(db.server.port),
        "PGUSER": "postgres",
        "PGPASSWORD": "any",
        "PGDATABASE": db.name,
    }
    run_page(DOCS / page, folder, environment)
