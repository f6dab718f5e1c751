"""Commands of `levada`, run in the test's process, over a manifest of its database."""

from __future__ import annotations

import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from psycopg import sql
from tests.rigs.database import Database
from typer.main import get_command
from typer.testing import CliRunner, Result

from levada.cli import main
from levada.cli.exit_codes import Exit
from levada.stores import PostgresStore
from levada.stores.phases import Errored, Init, Ready
from levada.values import TableId


def levada(*arguments: object) -> Result:
    """Run a command in this process. As `CliRunner.invoke`, which makes the whole command line for each run."""
    runner, command = CliRunner(), _command()
    name, code, failure = runner.get_default_prog_name(command), 0, None
    with runner.isolation() as streams:
        try:
            command.main(args=list(map(str, arguments)), prog_name=name)
        except SystemExit as end:
            code = int(end.code or 0)
            failure = end if code else None
        except Exception as error:
            code, failure = 1, error
        sys.stdout.flush()
        sys.stderr.flush()
        written = [stream.getvalue() for stream in streams]
    return Result(runner, *written, return_value=None, exit_code=code, exception=failure)


@cache
def _command() -> Any:
    return get_command(main)


def manifest_of(db: Database, **spec: Any) -> dict[str, Any]:
    """Return a Pipeline of everything in schema public."""
    return {
        "apiVersion": "levada.dev/v1alpha1",
        "kind": "Pipeline",
        "metadata": {"name": db.name.replace("_", "-")},
        "spec": {
            "source": {
                "host": "127.0.0.1",
                "port": db.server.port,
                "database": db.name,
                "credentialsSecretRef": {"name": "shop-cdc"},
                "tls": {"mode": "Disable"},
            },
            "tables": {"include": [{"schema": "public"}]},
            "destination": {
                "iceberg": {
                    "catalog": {"type": "Hadoop", "warehouse": f"file://{tempfile.gettempdir()}/levada-no-lake"}
                }
            },
            **spec,
        },
    }


def replicated(db: Database, schema: str = "replica", **spec: Any) -> dict[str, Any]:
    """Return a Pipeline whose destination is a schema of the source's database, so that a run takes no Spark."""
    place = {"host": "127.0.0.1", "port": db.server.port, "database": db.name, "tls": {"mode": "Disable"}}
    place |= {"schema": schema, "credentialsSecretRef": {"name": "shop-cdc"}}
    return manifest_of(db, **{"destination": {"postgres": place}, "freshnessSeconds": 1, **spec})


@pytest.fixture
def manifest(db: Database, tmp_path: Path) -> Path:
    """Return a manifest with the folder of its Secret, of a database with two tables."""
    db.execute("CREATE TABLE orders (id int PRIMARY KEY)", "CREATE TABLE items (id int PRIMARY KEY)")
    secret = tmp_path / "secrets" / "shop-cdc"
    secret.mkdir(parents=True)
    (secret / "username").write_text("postgres")
    (secret / "password").write_text("hunter2")
    path = tmp_path / "pipeline.yaml"
    path.write_text(yaml.safe_dump(manifest_of(db)))
    return path


def on(manifest: Path, command: str, *arguments: object) -> Result:
    """Run a command on the manifest with its Secrets."""
    result = levada(command, manifest, "--secrets", manifest.parent / "secrets", *arguments)
    assert "hunter2" not in result.output
    return result


def run(manifest: Path, *options: str) -> str:
    """Run the pipeline until it has caught up, and return its output and its log."""
    done = on(manifest, "run", "--until", "caught-up", *options)
    assert done.exit_code == Exit.OK, done.output
    return done.output


def publish(db: Database) -> None:
    """Make the publication that the engine would have made."""
    with db.connect() as connection:
        name = sql.Identifier(f"levada_{db.name}")
        connection.execute(sql.SQL("CREATE PUBLICATION {} FOR TABLE orders, items").format(name))


def kept(db: Database, name: str, phase: Errored | Init | Ready, pipeline: str = "") -> TableId:
    """Write a table's phase into the store, as an engine does. Return the table's ID."""
    [(oid,)] = db.query("SELECT oid FROM pg_class WHERE relname = %s", name)
    store = PostgresStore(db.connection, pipeline or db.name.replace("_", "-"))
    store.next_epoch()
    store.update_table_replication_states({TableId(oid): phase})
    store.close()
    return TableId(oid)


PASSWORD = "not-to-be-printed"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for the manifest, with a Secret of the superuser."""
    log_in_as(tmp_path, "postgres")
    return tmp_path


def log_in_as(folder: Path, role: str, password: str = PASSWORD) -> None:
    """Write the Secret that the manifest names."""
    secret = folder / "secrets" / "shop-cdc"
    secret.mkdir(parents=True, exist_ok=True)
    (secret / "username").write_text(role)
    (secret / "password").write_text(password)
