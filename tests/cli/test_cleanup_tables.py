"""`levada cleanup` of a pipeline into PostgreSQL: what becomes of its tables there."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest
import yaml
from tests.rigs.command_line import manifest, manifest_of, on
from tests.rigs.database import Database

from levada.cli.exit_codes import Exit

__all__ = ["manifest"]


def write(manifest: Path, db: Database, name: str = "", port: int = 0, **policy: str) -> None:
    """Write the manifest of a pipeline into schema copy_public of the source database."""
    server = {"host": "127.0.0.1", "port": port or db.server.port, "database": db.name, "tls": {"mode": "Disable"}}
    postgres = {**server, "credentialsSecretRef": {"name": "target"}, "schema": "copy_{schema}"}
    body = manifest_of(db, destination={"postgres": postgres}, deletionPolicy=policy)
    body["metadata"]["name"] = name or body["metadata"]["name"]
    manifest.write_text(yaml.safe_dump(body))
    target = manifest.parent / "secrets" / "target"
    target.mkdir(exist_ok=True)
    (target / "username").write_text("postgres")
    (target / "password").write_text("")


def run(manifest: Path, work_dir: Path) -> None:
    """Run the pipeline until it has caught up. A time limit would count from the import of the command."""
    done = on(manifest, "run", "--work-dir", work_dir, "--until", "caught-up")
    assert done.exit_code == Exit.OK, done.output


def cleanup(manifest: Path, work_dir: Path) -> Any:
    """Run the clean-up."""
    return on(manifest, "cleanup", "--work-dir", work_dir, "--yes")


def test_retained_tables_are_free(manifest: Path, db: Database, tmp_path: Path) -> None:
    """Others can write a table that a clean-up has retained. The next pipeline of that name claims it and guards it."""
    db.execute("INSERT INTO orders VALUES (1)")
    write(manifest, db)
    run(manifest, tmp_path / "work")
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        db.execute("INSERT INTO copy_public.orders VALUES (2)")
    done = cleanup(manifest, tmp_path / "work")
    assert done.exit_code == Exit.OK, done.output
    assert "destination: 2 tables may be written by others" in done.stdout
    db.execute("INSERT INTO copy_public.orders VALUES (2)")
    run(manifest, tmp_path / "work")
    assert db.query("SELECT id FROM copy_public.orders") == [(1,)]
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        db.execute("INSERT INTO copy_public.orders VALUES (2)")
    cleanup(manifest, tmp_path / "work")


@pytest.mark.parametrize(
    ("lock", "table"),
    [
        ("SELECT FROM copy_public.orders", "copy_public.orders"),
        pytest.param(
            "SELECT FROM levada.destination_tables FOR UPDATE", "destination_tables", marks=pytest.mark.nightly
        ),
        pytest.param("LOCK TABLE levada.destination_tables", "destination_tables", marks=pytest.mark.nightly),
    ],
    ids=["reader", "row", "table"],
)
def test_a_locked_table_names_its_session(
    manifest: Path, db: Database, tmp_path: Path, lock: LiteralString, table: str
) -> None:
    """One attempt waits for the lock. The error has the session's role, and a hint that works."""
    write(manifest, db, destinationTables="Delete")
    run(manifest, tmp_path / "work")
    with closing(db.connect(application_name="nightly report")) as other:
        other.execute("BEGIN")
        other.execute(lock)
        done = cleanup(manifest, tmp_path / "work")
        text = " ".join(done.output.split())
        assert (done.exit_code, "[destination_busy]" in text) == (Exit.FAILED, True), text
        assert f"PID {other.info.backend_pid} (role postgres, application nightly report, idle in transaction" in text
        assert f"{table} in mode" in text
        [ending] = re.findall(r"SELECT pg_terminate_backend\(\d+\)", text)
        db.execute(ending)
        done = cleanup(manifest, tmp_path / "work")
        assert done.exit_code == Exit.OK, done.output


@pytest.mark.nightly
def test_tables_are_dropped_only_where_the_destination_can_be_opened(
    manifest: Path, db: Database, tmp_path: Path
) -> None:
    """If it cannot, the slot and the state stay. Only tables that were there count as dropped.

    A clean-up that retains the tables goes on, and reports that they stay read-only.
    """
    write(manifest, db, destinationTables="Delete")
    run(manifest, tmp_path / "work")
    secret = manifest.parent / "secrets" / "target" / "username"
    secret.write_text("nobody")
    refused = cleanup(manifest, tmp_path / "work")
    assert (refused.exit_code, "[destination_auth_failed]" in refused.stderr) == (Exit.FAILED, True), refused.output
    slots = "SELECT count(*) FROM pg_replication_slots WHERE database = %s"
    assert db.query(slots, db.name) == [(1,)]
    assert db.query("SELECT count(*) FROM levada.documents WHERE kind = 'phases'") == [(2,)]
    secret.write_text("postgres")
    db.execute("DROP TABLE copy_public.items")
    done = cleanup(manifest, tmp_path / "work")
    assert done.exit_code == Exit.OK, done.output
    assert "destination: 1 table dropped, 1 table had no copy there" in done.stdout.replace("\n", " ")
    assert db.query("SELECT to_regclass('copy_public.orders')") == [(None,)]
    run(manifest, tmp_path / "work")
    write(manifest, db)
    secret.write_text("nobody")
    done = cleanup(manifest, tmp_path / "work")
    assert done.exit_code == Exit.OK, done.output
    assert "destination: its tables stay read-only" in done.stdout
    assert db.query(slots, db.name) == [(0,)]
