"""The parts of programs on the pages run in order, with the names that each page leaves to the reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.docs.pages import blocks_of
from tests.examples.load import load_example
from tests.rigs.database import Database
from tests.rigs.example_shop import shop
from tests.rigs.http_service import Service, service

from levada import PipelineConfig, PublicationConfig, QualifiedTable, SlotConfig, StagingConfig

__all__ = ["service", "shop"]

ROOT = Path(__file__).parents[2]


class StoredError(Exception):
    """The end of a stream that has none: the change has arrived."""


def given(db: Database, service: Service) -> dict[str, Any]:
    """Return the names that the pages leave to the reader."""
    received: list[Any] = []

    def store(event: Any) -> None:
        if getattr(event, "row", None) is not None:
            received.append(event.row.values)
            raise StoredError

    def load(rows: Any) -> None:
        received.extend(change.event.row.values for change in rows if hasattr(change.event, "row"))
        db.execute("INSERT INTO orders VALUES (3)")

    return {
        "Path": Path,
        "config": PipelineConfig(
            name="http",
            source=db.connection,
            slot=SlotConfig("levada_http"),
            publication=PublicationConfig("levada_http"),
            staging=StagingConfig("staging", durable=False),
            work_dir=Path("work"),
            selects=lambda table: table.schema == "public",
        ),
        "MyDestination": lambda: load_example("custom_destination").HttpDestination(service.url),
        "connection": db.connection,
        "tables": {QualifiedTable("public", "orders")},
        "load": load,
        "store": store,
        "received": received,
    }


def run_parts(page: str, names: dict[str, Any], adapted: dict[str, str]) -> None:
    """Run the blocks of Python of a page in one namespace."""
    imports = "from levada import Continuity, WalChangeCapture"
    exec(imports, names)
    blocks = [block for block in blocks_of(ROOT / page) if block.language == "python"]
    assert len(blocks) >= 3
    for block in blocks:
        code = block.code
        for written, here in adapted.items():
            code = code.replace(written, here)
        try:
            exec(compile("\n" * (block.line - 1) + code, page, "exec"), names)
        except StoredError:
            continue


def test_readme(shop: Database, service: Service) -> None:
    """The engine copies the tables, a destination gets the rows, and a capture each row and each change once."""
    names = given(shop, service)
    run_parts("README.md", names, {})
    assert names["outcome"].__class__.__name__ == "CaughtUp"
    assert sorted(row["id"] for row in service.rows("public.orders")) == [1, 2]
    assert names["received"] == [{"id": 1}, {"id": 2}, {"id": 3}]


def test_python_page(shop: Database, capsys: pytest.CaptureFixture[str]) -> None:
    """The engine catches up by both logins, and the class of a destination takes the options of the page."""
    names: dict[str, Any] = {}
    run_parts("docs/python.md", names, {'"username": "levada"': '"username": "postgres"'})
    assert "caught up" in capsys.readouterr().out
    assert shop.query("SELECT id FROM copy_public.orders ORDER BY id") == [(1,), (2,)]
    settings = names["LinesDestination"].table_settings_model.model_validate({"separator": ";"})
    assert settings.separator == ";"
