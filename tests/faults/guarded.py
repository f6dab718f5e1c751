"""A source with limits, and readers of what its guard did."""

from __future__ import annotations

from typing import Any

from tests.rigs.database import Database
from tests.rigs.engine import Engine

ROWS = (
    "INSERT INTO {} SELECT i, (SELECT string_agg(md5((i * 40 + j)::text), '') FROM generate_series(1, 30) j)"
    " FROM generate_series({}, {}) i"
)


def table(db: Database, name: str, rows: int) -> None:
    """Create a table with rows of about a kilobyte."""
    db.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)", ROWS.format(name, 1, rows))


def suspended(name: str) -> dict[str, Any]:
    """Return a TableSync that keeps the table's changes from being applied."""
    return {
        "apiVersion": "levada.dev/v1alpha1",
        "kind": "TableSync",
        "metadata": {"name": name},
        "spec": {"pipelineRef": {"name": "shop"}, "table": {"name": name}, "suspend": True},
    }


def phases(progress: dict[str, Any]) -> dict[str, str]:
    """Return each table's phase."""
    return {t["name"]: t["phase"] for t in progress["tables"]}


def actions(progress: dict[str, Any]) -> list[str]:
    """Return the messages of what the guard did."""
    return [a["message"] for a in progress["guard"]["actions"]]


def source(engine: Engine) -> dict[str, Any]:
    """Return the manifest's source."""
    import yaml

    engine.write_manifest()
    found: dict[str, Any] = yaml.safe_load(engine.manifest.read_text())["spec"]["source"]
    return found
