"""The example of the engine in a Python program."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.rigs.database import Database
from tests.runtime.manifest_text import manifest_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLE = Path(__file__).parents[2] / "examples" / "run-engine" / "run_engine.py"


def test_the_example_ends_once_every_table_has_caught_up(
    db: Database, tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    """It reports the phases, and the problems of a source that is not ready."""
    secret = tmp_path / "secrets" / "cdc"
    secret.mkdir(parents=True)
    (secret / "username").write_text("postgres")
    (secret / "password").write_text("")
    address = {"host": "127.0.0.1", "port": db.server.port, "database": db.name}
    source = {**address, "credentialsSecretRef": {"name": "cdc"}, "tls": {"mode": "Disable"}}
    lake = {"iceberg": {"catalog": {"type": "Hadoop", "warehouse": f"file://{tmp_path}/lake"}}}
    manifest = tmp_path / "pipeline.yaml"
    manifest.write_text(manifest_text("shop", source=source, destination=lake))
    run = runpy.run_path(str(EXAMPLE))["run"]
    assert run(manifest, secret.parent) == 1
    assert "[no_tables_selected]" in capsys.readouterr().err
    db.execute("CREATE TABLE orders (id int PRIMARY KEY)", "INSERT INTO orders VALUES (1)")
    assert run(manifest, secret.parent) == 0
    output = capsys.readouterr().out
    assert "public.orders: Ready" in output
    assert "shop: 1 tables have caught up" in output
