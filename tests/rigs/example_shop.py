"""A database, a manifest and a login, as a reader of the examples has them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.rigs.database import Database


@pytest.fixture
def shop(db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Database:
    """Two tables, and in the current folder a manifest that copies them into another schema, with its Secret.

    The environment has the programs, and the login that libpq takes.
    """
    db.execute(
        "CREATE TABLE orders (id int PRIMARY KEY)",
        "CREATE TABLE customers (id int PRIMARY KEY)",
        "INSERT INTO orders VALUES (1), (2)",
    )
    server: dict[str, Any] = {"host": "127.0.0.1", "port": db.server.port, "database": db.name}
    server |= {"credentialsSecretRef": {"name": "shop-cdc"}, "tls": {"mode": "Disable"}}
    spec = {
        "source": server,
        "tables": {"include": [{"schema": "public", "name": "*"}]},
        "destination": {"postgres": {**server, "schema": "copy_{schema}"}},
    }
    head = {"apiVersion": "levada.dev/v1alpha1", "kind": "Pipeline", "metadata": {"name": "shop"}}
    (tmp_path / "pipeline.yaml").write_text(yaml.safe_dump({**head, "spec": spec}))
    (tmp_path / "secrets" / "shop-cdc").mkdir(parents=True)
    for key in ("username", "password"):
        (tmp_path / "secrets" / "shop-cdc" / key).write_text("postgres")
    monkeypatch.chdir(tmp_path)
    address = {"PGHOST": "127.0.0.1", "PGPORT": str(db.server.port), "PGDATABASE": db.name}
    programs = f"{Path(sys.executable).parent}:{db.server.bin}:{os.environ['PATH']}"
    for name, value in {**address, "PGUSER": "postgres", "PGPASSWORD": "any", "PATH": programs}.items():
        monkeypatch.setenv(name, value)
    return db
